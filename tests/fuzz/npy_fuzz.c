/* Fuzz entry for the reader of NPY files. With libFuzzer: clang -fsanitize=fuzzer,address. */
#define READER  tt_array_npy
#define PROMISE tt_array_npy_size
#include "array_fuzz.h"
