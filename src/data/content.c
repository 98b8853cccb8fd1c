/* content: what tells one dataset from another: a fingerprint of all that is in it, and of what its
 * numbers mean. */
#include <string.h>

#include "data/csv.h"

static void add_to_sha(tt_sha *sha, const tt_source *s)
{
    int64_t n = s->kept, each = tt_shape_count(s->shape);
    int64_t head[5] = {s->count, s->kept, each, s->keep, s->targets};

    tt_sha_add(sha, head, sizeof head);
    if (s->keep == TT_KEEP_U8) tt_sha_add(sha, s->u8, (size_t)(n * each));
    if (s->keep == TT_KEEP_F32) tt_sha_add(sha, s->f32, (size_t)(n * each) * sizeof *s->f32);
    if (s->keep == TT_KEEP_SPARSE) {
        tt_sha_add(sha, s->row, (size_t)(n + 1) * sizeof *s->row);
        tt_sha_add(sha, s->col, (size_t)s->row[n] * sizeof *s->col);
        tt_sha_add(sha, s->val, (size_t)s->row[n] * sizeof *s->val);
    }
    if (s->keep == TT_KEEP_TOKENS) {
        if (s->token) tt_sha_add(sha, s->token, (size_t)s->tokens * sizeof *s->token);
        for (int i = 0; i < s->shard_count; i++)
            tt_sha_add(sha, s->shard[i].data,
                       (size_t)s->shard[i].count * (s->shard[i].wide ? 4 : 2));
        if (s->row) tt_sha_add(sha, s->row, (size_t)(n + 1) * sizeof *s->row);
    }
    if (s->ids) tt_sha_add(sha, s->ids, (size_t)(n * s->ids_each) * sizeof *s->ids);
    if (s->label) tt_sha_add(sha, s->label, (size_t)(n * s->labels) * sizeof *s->label);
    if (s->target) tt_sha_add(sha, s->target, (size_t)(n * s->targets) * sizeof *s->target);
}

const char *tt_data_sha(const tt_data *d)
{
    tt_data *me = (tt_data *)d; /* a cache, behind its lock */

    pthread_mutex_lock(&me->sha_lock);
    if (!*me->sha) {
        tt_sha *sha = tt_sha_begin();
        if (d->train) add_to_sha(sha, d->train);
        if (d->val) add_to_sha(sha, d->val);
        for (int i = 0; i < 2; i++) {
            int64_t cut[3] = {d->part[i].count, d->part[i].first, (int64_t)d->part[i].key};
            tt_sha_add(sha, cut, sizeof cut);
        }
        tt_sha_end(sha, me->sha);
    }
    pthread_mutex_unlock(&me->sha_lock);
    return me->sha;
}

/* ---- Meaning ---- */

static uint64_t mix_bytes(uint64_t h, const void *data, size_t n)
{
    const uint8_t *b = data;

    for (size_t i = 0; i < n; i++) h = tt_mix(h ^ b[i]);
    return tt_mix(h ^ n);
}

void tt_source_name_word(tt_source *s, const void *word, size_t size)
{
    s->words = mix_bytes(s->words, word, size);
}

void tt_source_name_words(tt_source *s, const char *const *word, int count)
{
    for (int i = 0; i < count; i++) tt_source_name_word(s, word[i], strlen(word[i]));
}

tt_meaning tt_data_meaning(const tt_data *d)
{
    const tt_source *s = d->train ? d->train : d->val;
    const bool recalled = d->train && !d->part[TT_TRAIN].src; /* with what is scaled alone */
    tt_meaning m = {s ? s->words : 0, 0};

    for (int64_t c = 0; d->mean && !recalled && c < d->channels; c++) {
        float pair[2] = {(float)d->mean[c], (float)d->deviation[c]};
        m.scale = mix_bytes(m.scale, pair, sizeof pair);
    }
    return m;
}
