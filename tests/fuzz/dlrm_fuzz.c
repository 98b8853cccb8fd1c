/* Fuzz entry for the reader of DLRM's records. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define READER tt_dlrm_decode
#define TEXT   uint8_t
#include "click_fuzz.h"
