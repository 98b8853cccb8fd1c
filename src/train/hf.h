/* hf: GPT-2 as Hugging Face's transformers store it: model.safetensors with config.json beside it.
 *
 * Its dense layers are stored turned, (in, out) where ours are (out, in); names may begin with
 * "transformer."; lm_head.weight is wte.weight again, or left out; the mask of its attention may be
 * there as a tensor, attn.bias. Our own files have the same names, and our shapes: c_attn.weight,
 * three times as long as wide or as wide as long, tells them apart. */
#ifndef TT_HF_H
#define TT_HF_H

#include "train.h"

/* Is it in this layout? Others that are so named have their dense layers as ours are: *turns says.
 */
bool hf_is(const tt_tensors *file, bool *turns);

/* What one of its tensors is to us. `name` becomes our name of it. */
typedef enum hf_use { HF_TAKE, HF_TURN, HF_IGNORE } hf_use;
hf_use hf_means(char *name, bool turns);

/* Numbers (rows, columns) become (columns, rows). */
void hf_turn(const float *from, int64_t rows, int64_t columns, float *to);

/* Is the model a GPT-2, and that of the config.json beside the file, if there is one? TT_ECKPT says
 * what differs. */
tt_err hf_check(const tt_model *m, const char *file);

/* Writes model.safetensors and config.json into the folder, which is made if it is not there.
 * TT_EINVAL: the model is no GPT-2. */
tt_err hf_write(const tt_model *m, const float *w, const char *folder);

#endif
