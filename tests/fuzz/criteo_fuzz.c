/* Fuzz entry for the reader of Criteo's lines. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define READER tt_criteo_decode
#define TEXT   char
#include "click_fuzz.h"
