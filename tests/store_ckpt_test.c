/* Checkpoints as a reader finds them: whatever happened to the files is found and named, and the
 * next older one serves. */
#define _GNU_SOURCE
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "store/store.h"

enum { N = 64 };

static float weights[N], moments[N];
static const char *const files[] = {"model.safetensors", "optim.safetensors"};
static tt_entry entries[] = {{"w", TT_F32, 2, {8, 8}, weights, sizeof weights},
                             {"m", TT_F32, 1, {N}, moments, sizeof moments}};

static void set_state(int64_t step)
{
    for (int i = 0; i < N; i++) {
        weights[i] = (float)(step * 1000 + i);
        moments[i] = (float)-(step * 1000 + i);
    }
}

/* Saves these steps to "ck". */
static void save_steps(int count, const int64_t *steps)
{
    tt_saver_opts o = {.folder = "ck", .entries = entries, .file = files, .count = 2};
    tt_saver *s;

    tt_log_quiet(true);
    EXPECT_OK(tt_saver_open(&o, &s));
    for (int i = 0; i < count; i++) {
        set_state(steps[i]);
        EXPECT_OK(tt_saver_save(s, steps[i], json_pack("{s:I}", "sample", (json_int_t)steps[i] * 7),
                                NAN));
    }
    EXPECT_OK(tt_saver_wait(s));
    tt_saver_close(s);
}

static void save_three(void)
{
    save_steps(3, (int64_t[]){10, 20, 30});
}

static void expect_state(tt_ckpt *c, int64_t step)
{
    float got[N];

    EXPECT_INT(step, tt_ckpt_step(c));
    EXPECT_INT(2, tt_ckpt_count(c));
    set_state(step);
    EXPECT_OK(tt_entry_floats(tt_ckpt_find(c, "w"), got, N));
    EXPECT(!memcmp(got, weights, sizeof got));
    EXPECT_OK(tt_entry_floats(tt_ckpt_find(c, "m"), got, N));
    EXPECT(!memcmp(got, moments, sizeof got));
    EXPECT_INT(step * 7, json_integer_value(json_object_get(tt_ckpt_meta(c), "sample")));
    tt_ckpt_close(c);
}

/* Step 30 was damaged: it is refused with a message that names `file` and holds `why`, is listed
 * with that defect, and step 20 is taken in its stead. */
static void expect_defect(const char *file, const char *why)
{
    tt_ckpt_info *list;
    tt_ckpt *c;
    int count;

    EXPECT_ERR(TT_EFORMAT, tt_ckpt_open("ck", 30, true, &c));
    EXPECT(c == NULL);
    EXPECT_MESSAGE(file);
    EXPECT_MESSAGE(why);
    EXPECT_OK(tt_ckpt_list("ck", true, &list, &count));
    EXPECT_INT(3, count);
    EXPECT(list[0].valid && list[1].valid && !list[2].valid);
    EXPECT(list[1].newest && !list[2].newest);
    EXPECT(strstr(list[2].defect, file) && strstr(list[2].defect, why));
    free(list);
    EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
    expect_state(c, 20);
}

static void flip(const char *path, long at, int bit)
{
    FILE *f = fopen(path, "r+b");
    int byte;

    EXPECT(f && !fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) && (byte = fgetc(f)) != EOF);
    EXPECT(!fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) && fputc(byte ^ 1 << bit, f) != EOF);
    EXPECT(!fclose(f));
}

TT_TEST(ckpt, newest_and_any_other_step_come_back_whole)
{
    tt_ckpt *c;

    save_three();
    EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
    expect_state(c, 30);
    EXPECT_OK(tt_ckpt_open("ck", 10, false, &c));
    expect_state(c, 10);
    EXPECT_OK(tt_ckpt_open_path("ck/step-00000020", true, &c));
    EXPECT_STR("w", tt_ckpt_at(c, 0)->name);
    EXPECT_STR("m", tt_ckpt_at(c, 1)->name);
    EXPECT(tt_ckpt_find(c, "x") == NULL);
    expect_state(c, 20);
    tt_ckpt_close(NULL);
}

/* A checkpoint of weights that ran away is intact, but nothing can go on from it. */
TT_TEST(ckpt, one_that_is_not_finite_is_passed_over)
{
    tt_saver_opts o = {.folder = "ck", .entries = entries, .file = files, .count = 2};
    tt_ckpt_info *list;
    tt_saver *s;
    tt_ckpt *c;
    int count;

    save_three();
    EXPECT_OK(tt_saver_open(&o, &s));
    set_state(40);
    moments[3] = INFINITY;
    EXPECT_OK(tt_saver_save(s, 40, NULL, NAN));
    EXPECT_OK(tt_saver_wait(s));
    tt_saver_close(s);
    EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
    EXPECT(tt_ckpt_finite(c));
    expect_state(c, 30);
    EXPECT_OK(tt_ckpt_list("ck", true, &list, &count));
    EXPECT(list[2].newest && list[3].valid && !list[3].newest);
    free(list);
    EXPECT_OK(tt_ckpt_open("ck", 40, true, &c)); /* whoever asks for it may see it */
    EXPECT(!tt_ckpt_finite(c));
    tt_ckpt_close(c);
    for (int step = 10; step <= 30; step += 10) {
        char path[64];
        snprintf(path, sizeof path, "ck/step-%08d", step);
        EXPECT_OK(tt_dir_remove(path));
    }
    EXPECT_ERR(TT_ECKPT, tt_ckpt_open("ck", -1, true, &c));
    EXPECT_MESSAGE("not finite");
}

TT_TEST(ckpt, its_files_can_be_told_apart)
{
    tt_ckpt *c;

    save_three();
    EXPECT_OK(tt_ckpt_open("ck", 30, true, &c));
    EXPECT_INT(1, tt_tensors_count(tt_ckpt_file(c, "model.safetensors")));
    EXPECT_STR("w", tt_tensors_at(tt_ckpt_file(c, "model.safetensors"), 0)->name);
    EXPECT_STR("m", tt_tensors_at(tt_ckpt_file(c, "optim.safetensors"), 0)->name);
    EXPECT(tt_ckpt_file(c, "other.safetensors") == NULL);
    tt_ckpt_close(c);
}

TT_TEST(ckpt, a_copied_folder_opens_under_any_name)
{
    tt_ckpt *c;

    save_three();
    EXPECT(!rename("ck/step-00000020", "mine"));
    EXPECT_OK(tt_ckpt_open_path("mine", true, &c));
    expect_state(c, 20);
}

TT_TEST(ckpt, none_is_told_from_bad_ones)
{
    tt_ckpt_info *list;
    tt_ckpt *c;
    int count;

    EXPECT_ERR(TT_ECKPT, tt_ckpt_open("absent", -1, true, &c));
    EXPECT_MESSAGE("no checkpoint in absent");
    EXPECT_OK(tt_ckpt_list("absent", true, &list, &count));
    EXPECT_INT(0, count);
    free(list);
    save_steps(1, (int64_t[]){5});
    EXPECT_ERR(TT_ECKPT, tt_ckpt_open("ck", 6, true, &c));
    EXPECT_MESSAGE("step 6");
    EXPECT(!unlink("ck/step-00000005/model.safetensors"));
    EXPECT_ERR(TT_ECKPT, tt_ckpt_open("ck", -1, false, &c));
    EXPECT_MESSAGE("model.safetensors");
    EXPECT_ERR(TT_EFORMAT, tt_ckpt_open_path("nowhere", false, &c));
    EXPECT_MESSAGE("nowhere");
}

TT_TEST(ckpt, a_missing_manifest_is_found)
{
    save_three();
    EXPECT(!unlink("ck/step-00000030/manifest.json"));
    expect_defect("manifest.json", "never finished");
}

TT_TEST(ckpt, an_empty_folder_or_file_in_its_place_is_found)
{
    save_three();
    EXPECT_OK(tt_dir_remove("ck/step-00000030"));
    tt_test_write("ck/step-00000030", "?", 1);
    expect_defect("manifest.json", "");
    EXPECT(!unlink("ck/step-00000030"));
    EXPECT(!mkdir("ck/step-00000030", 0777));
    expect_defect("manifest.json", "never finished");
}

TT_TEST(ckpt, a_truncated_file_is_found)
{
    save_three();
    EXPECT(!truncate("ck/step-00000030/optim.safetensors", 300));
    expect_defect("optim.safetensors", "cut short");
}

TT_TEST(ckpt, an_extended_file_is_found)
{
    FILE *f;

    save_three();
    f = fopen("ck/step-00000030/model.safetensors", "ab");
    EXPECT(f && fputc(0, f) == 0 && !fclose(f));
    expect_defect("model.safetensors", "extended");
}

TT_TEST(ckpt, a_missing_file_is_found)
{
    save_three();
    EXPECT(!unlink("ck/step-00000030/model.safetensors"));
    expect_defect("model.safetensors", "No such file");
}

TT_TEST(ckpt, a_flipped_bit_is_found)
{
    save_three();
    flip("ck/step-00000030/model.safetensors", -17, 3);
    expect_defect("model.safetensors", "SHA-256");
}

TT_TEST(ckpt, swapped_files_are_found)
{
    save_three();
    EXPECT(!rename("ck/step-00000030/model.safetensors", "x"));
    EXPECT(!rename("ck/step-00000030/optim.safetensors", "ck/step-00000030/model.safetensors"));
    EXPECT(!rename("x", "ck/step-00000030/optim.safetensors"));
    expect_defect("model.safetensors", "SHA-256");
}

TT_TEST(ckpt, files_of_another_step_are_found)
{
    save_three();
    EXPECT(!rename("ck/step-00000010/optim.safetensors", "ck/step-00000030/optim.safetensors"));
    EXPECT_OK(tt_dir_remove("ck/step-00000010"));
    save_steps(1, (int64_t[]){10});
    expect_defect("optim.safetensors", "SHA-256");
}

TT_TEST(ckpt, a_folder_under_the_wrong_step_is_found)
{
    save_three();
    EXPECT_OK(tt_dir_remove("ck/step-00000030"));
    EXPECT(!rename("ck/step-00000010", "ck/step-00000030"));
    save_steps(1, (int64_t[]){10});
    expect_defect("manifest.json", "of step 10");
}

TT_TEST(ckpt, every_changed_byte_of_the_manifest_is_found)
{
    const char *path = "ck/step-00000030/manifest.json";
    struct stat st;
    tt_ckpt *c;

    save_three();
    EXPECT(!stat(path, &st));
    for (long at = 0; at < 8 * st.st_size; at++) {
        flip(path, at / 8, (int)(at % 8));
        if (!tt_ckpt_open_path("ck/step-00000030", false, &c))
            FAIL("bit %ld of byte %ld was flipped, and nobody noticed", at % 8, at / 8);
        if (!strstr(tt_message(), "manifest.json")) FAIL("not named: %s", tt_message());
        flip(path, at / 8, (int)(at % 8));
    }
    EXPECT_OK(tt_ckpt_open("ck", 30, true, &c));
    expect_state(c, 30);
}

static void expect_found(const char *name, const char *what, long at)
{
    tt_ckpt *c;

    if (!tt_ckpt_open_path("ck/step-00000030", true, &c))
        FAIL("%s: %s at %ld, and nobody noticed", name, what, at);
    if (!strstr(tt_message(), name))
        FAIL("%s: %s at %ld: not named: %s", name, what, at, tt_message());
}

/* Header, padding and numbers alike: there is no byte that may rot. */
TT_TEST(ckpt, every_changed_byte_and_every_other_length_of_its_files_is_found)
{
    static const char *const names[] = {"model.safetensors", "optim.safetensors"};
    tt_ckpt *c;

    save_three();
    for (int i = 0; i < TT_COUNT(names); i++) {
        char path[128];
        struct stat st;
        tt_bytes b;
        uint8_t *copy;
        snprintf(path, sizeof path, "ck/step-00000030/%s", names[i]);
        EXPECT(!stat(path, &st));
        for (long at = 0; at < st.st_size; at++) {
            flip(path, at, (int)(at % 8));
            expect_found(names[i], "a bit was flipped", at);
            flip(path, at, (int)(at % 8));
        }
        EXPECT_OK(tt_file_read(path, 0, &b));
        EXPECT((copy = calloc(b.size + 64, 1)));
        memcpy(copy, b.data, b.size);
        tt_file_release(&b);
        for (long size = 0; size < st.st_size + 64; size += size < st.st_size - 8 ? 7 : 1) {
            if (size == st.st_size) continue;
            tt_test_write(path, copy, (size_t)size);
            expect_found(names[i], "cut or extended", size);
        }
        tt_test_write(path, copy, (size_t)st.st_size);
        free(copy);
    }
    EXPECT_OK(tt_ckpt_open("ck", 30, true, &c));
    expect_state(c, 30);
}

/* Writes a manifest of our own making for step 30; never sealed, so always refused. */
static void forge(const char *text)
{
    tt_test_write("ck/step-00000030/manifest.json", text, strlen(text));
}

TT_TEST(ckpt, forged_manifests_are_refused_with_a_reason)
{
    save_three();
    forge("");
    expect_defect("manifest.json", "not JSON");
    forge("[]");
    expect_defect("manifest.json", "not a JSON object");
    forge("{\"format\":\"x\"}");
    expect_defect("manifest.json", "not the manifest");
    forge("{\"format\":\"tutti-checkpoint\",\"version\":2}");
    expect_defect("manifest.json", "version 2, this build reads 1");
    forge("{\"format\":\"tutti-checkpoint\",\"version\":1,\"step\":-1}");
    expect_defect("manifest.json", "malformed");
#define FILES(list)                                                                                \
    "{\"format\":\"tutti-checkpoint\",\"version\":1,\"step\":30,\"time\":1,\"finite\":true,"       \
    "\"score\":null,\"meta\":{},\"files\":[" list "]}"
    forge(FILES("{\"name\":\"../../etc/passwd\",\"bytes\":1,\"sha256\":\"\"}"));
    expect_defect("manifest.json", "no proper name");
    forge(FILES("{\"name\":\"a\",\"bytes\":-1,\"sha256\":\"\"}"));
    expect_defect("manifest.json", "malformed");
    forge(FILES("7"));
    expect_defect("manifest.json", "no proper name");
    forge(FILES(""));
    expect_defect("manifest.json", "was changed");
}

TT_TEST(ckpt, unfinished_and_alien_names_are_ignored)
{
    tt_ckpt_info *list;
    tt_ckpt *c;
    int count;

    save_three();
    EXPECT_OK(tt_dir_make("ck/step-00000040.tmp"));
    EXPECT_OK(tt_dir_make("ck/step-40"));
    EXPECT_OK(tt_dir_make("ck/step-0000004x"));
    EXPECT_OK(tt_dir_make("ck/step--0000001"));
    EXPECT_OK(tt_dir_make("ck/step-99999999999999999999"));
    EXPECT_OK(tt_dir_make("ck/notes"));
    EXPECT_OK(tt_ckpt_list("ck", false, &list, &count));
    EXPECT_INT(3, count);
    free(list);
    EXPECT_OK(tt_ckpt_open("ck", -1, false, &c));
    expect_state(c, 30);
}

TT_TEST(ckpt, lies_in_latest_and_best_are_not_believed)
{
    tt_ckpt *c;

    save_three();
    EXPECT_FILE("ck/LATEST", "step-00000030\n");
    tt_test_write("ck/LATEST", "step-00000010\n", 14);
    EXPECT_OK(tt_ckpt_open("ck", -1, false, &c));
    expect_state(c, 30);
}

TT_TEST(ckpt, without_hashing_only_sizes_are_checked)
{
    tt_ckpt_info *list;
    tt_ckpt *c;
    int count;

    save_three();
    flip("ck/step-00000030/model.safetensors", -17, 3);
    EXPECT_OK(tt_ckpt_open("ck", -1, false, &c));
    EXPECT_INT(30, tt_ckpt_step(c));
    tt_ckpt_close(c);
    EXPECT_OK(tt_ckpt_list("ck", false, &list, &count));
    EXPECT(list[2].valid && list[2].newest && !*list[2].defect);
    EXPECT(list[2].bytes > 512 && list[2].finite && isnan(list[2].score) && !list[2].best);
    EXPECT_NEAR(tt_wall_s(), list[2].time, 60);
    EXPECT_STR("ck/step-00000030", list[2].path);
    free(list);
}

TT_TEST(ckpt, large_steps_sort_by_number)
{
    tt_ckpt *c;

    save_steps(3, (int64_t[]){99999999, 100000000, 5});
    EXPECT_OK(tt_ckpt_open("ck", -1, true, &c));
    expect_state(c, 100000000);
}
