/* Fuzz entry for the reader of IDX files. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define READER  tt_array_idx
#define PROMISE tt_array_idx_size
#include "array_fuzz.h"
