/* Saved sequences: what is damaged, foreign or too large is refused whole, and leaves everything as
 * it was. That what was saved goes on as if nothing had happened is prop.kv_full's. */
#include "tests/support/golden_model.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/hash.h"
#include "runtime/session/saved_format.h"

#define TOKENS 200u
#define VOCAB 320u

static char path[64], other_path[72];
static int32_t ids[TOKENS + 200];

static void open_engine(struct pkvt_engine *engine, const char *model, uint32_t context,
                        uint32_t step_rows, uint64_t budget_bytes)
{
    const struct pkvt_engine_options options = {.threads = 1,
                                                .context = context,
                                                .sequences = 2,
                                                .step_rows = step_rows,
                                                .budget_bytes = budget_bytes};
    char file[128];
    snprintf(file, sizeof file, "golden/tiny/%s.gguf", model);
    pkvt_engine_open(engine, pkvt_path(file), &options);
}

/* A sequence of TOKENS tokens, saved with one id more and a note. */
static void save(struct pkvt_engine *engine, const char *to)
{
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    const struct pkv_saved_info info = {
        .ids = ids, .id_count = TOKENS + 1, .note = "a note", .note_bytes = 6};
    assert_ok(pkv_seq_open(engine->session, &seq));
    assert_ok(pkv_prompt_run(engine->session, seq, ids, TOKENS, NULL, &logits));
    assert_ok(pkv_seq_save(seq, to, &info));
    pkv_seq_close(seq);
}

static enum pkv_status load(struct pkvt_engine *engine, const char *from, struct pkv_seq **seq_out)
{
    struct pkv_saved *saved = NULL;
    enum pkv_status status = pkv_saved_open(from, &saved);
    if (status == PKV_OK) {
        status = pkv_seq_load(engine->session, saved, seq_out);
    }
    pkv_saved_close(saved);
    return status;
}

static void write_file(const char *to, const char *data, size_t bytes)
{
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Refused, no sequence is open, no page taken. */
static void refuse(struct pkvt_engine *engine, const char *from, enum pkv_status want)
{
    struct pkv_seq *seq = NULL, *all[2];
    assert_status(load(engine, from, &seq), want);
    assert_null(seq);
    assert_ok(pkv_seq_open(engine->session, &all[0]));
    assert_ok(pkv_seq_open(engine->session, &all[1]));
    pkv_seq_close(all[0]);
    pkv_seq_close(all[1]);
    struct pkv_kv_report report;
    pkv_session_kv_report(engine->session, &report);
    assert_int_equal(report.pages_used, 0);
}

static void test_saved__ids_and_note__come_back(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_saved *saved = NULL;
    struct pkv_saved_info info;
    struct pkv_seq *seq = NULL;
    open_engine(&engine, "gemma3", 256, 32, 0);
    save(&engine, path);
    assert_ok(pkv_saved_open(path, &saved));
    pkv_saved_query(saved, &info);
    assert_int_equal(info.tokens, TOKENS);
    assert_int_equal(info.id_count, TOKENS + 1);
    assert_memory_equal(info.ids, ids, (TOKENS + 1) * sizeof *ids);
    assert_int_equal(info.note_bytes, 6);
    assert_memory_equal(info.note, "a note", 6);
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(info.file_bytes, file.st_size);
    assert_ok(pkv_seq_load(engine.session, saved, &seq));
    assert_int_equal(pkv_seq_tokens(seq), TOKENS);
    pkv_saved_close(saved);
    pkvt_engine_close(&engine);
}

static void test_saved__any_byte_changed_or_missing__refused(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    size_t bytes = 0;
    struct pkvt_rng rng = {.state = 3};
    open_engine(&engine, "gemma3", 256, 32, 0);
    save(&engine, path);
    char *data = pkvt_read_file(path, &bytes);
    const uint32_t tries = PKVT_SANITIZED ? 150 : 600;
    for (uint32_t i = 0; i < tries; i++) {
        const size_t at = i < 300 ? i * 2 : pkvt_rng_below(&rng, (uint32_t)bytes);
        struct pkv_seq *seq = NULL;
        data[at] = (char)(data[at] ^ (1 << i % 8));
        write_file(other_path, data, bytes);
        const enum pkv_status status = load(&engine, other_path, &seq);
        if (status != PKV_ERR_CORRUPT && !(status == PKV_ERR_UNSUPPORTED && at >= 8 && at < 12)) {
            fail_msg("byte %zu of %zu changed: %s", at, bytes, pkv_status_name(status));
        }
        data[at] = (char)(data[at] ^ (1 << i % 8));
    }
    for (uint32_t i = 0; i < 40; i++) {
        const size_t left = i < 20 ? bytes - 1 - i * i : pkvt_rng_below(&rng, (uint32_t)bytes);
        write_file(other_path, data, left);
        refuse(&engine, other_path, PKV_ERR_CORRUPT);
    }
    char *longer = malloc(bytes + 1);
    assert_non_null(longer);
    memcpy(longer, data, bytes);
    longer[bytes] = 0;
    write_file(other_path, longer, bytes + 1);
    refuse(&engine, other_path, PKV_ERR_CORRUPT);
    free(longer);
    free(data);
    pkvt_engine_close(&engine);
}

/* The file with one number of its header changed, and a checksum that holds; false: it was so. */
static bool write_changed(char *data, size_t bytes, size_t offset, uint32_t value)
{
    struct pkvi_saved_header header, before;
    memcpy(&before, data, sizeof before);
    header = before;
    memcpy((char *)&header + offset, &value, sizeof value);
    const bool is_new = memcmp(&header, &before, sizeof header) != 0;
    header.checksum = pkvi_hash(&header, offsetof(struct pkvi_saved_header, checksum), 0);
    memcpy(data, &header, sizeof header);
    write_file(other_path, data, bytes);
    memcpy(data, &before, sizeof before);
    return is_new;
}

static void test_saved__lying_header__refused_before_memory_is_asked(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    size_t bytes = 0;
    open_engine(&engine, "llama", 256, 32, 0);
    save(&engine, path);
    char *data = pkvt_read_file(path, &bytes);
    static const size_t offsets[] = {12, 16, 32, 36, 40, 44, 48, 56};
    static const uint32_t values[] = {0, 1, 3, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            if (!write_changed(data, bytes, offsets[i], values[j])) {
                continue;
            }
            /* bf16 takes as many bytes as f16: right in itself, only not this session's */
            refuse(&engine, other_path,
                   offsets[i] == 32 && values[j] == 1 ? PKV_ERR_INVALID : PKV_ERR_CORRUPT);
        }
    }
    free(data);
    pkvt_engine_close(&engine);
}

static void test_saved__older_version__refused_naming_both(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    size_t bytes = 0;
    open_engine(&engine, "llama", 256, 32, 0);
    save(&engine, path);
    char *data = pkvt_read_file(path, &bytes);
    assert_true(write_changed(data, bytes, offsetof(struct pkvi_saved_header, version), 0));
    refuse(&engine, other_path, PKV_ERR_UNSUPPORTED);
    assert_non_null(strstr(pkv_error_text(), "version 0"));
    free(data);
    pkvt_engine_close(&engine);
}

static void test_saved__another_model_type_or_context__refused(void **state)
{
    (void)state;
    struct pkvt_engine engine, other;
    open_engine(&engine, "llama", 256, 32, 0);
    save(&engine, path);
    pkvt_engine_close(&engine);
    open_engine(&other, "llama_q4_1", 256, 32, 0); /* of the same shape */
    refuse(&other, path, PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "another model"));
    pkvt_engine_close(&other);
    open_engine(&other, "llama", TOKENS - 1, 32, 0);
    refuse(&other, path, PKV_ERR_RANGE);
    pkvt_engine_close(&other);
    const struct pkvt_engine_options options = {
        .threads = 1, .context = 256, .sequences = 2, .kv_type = PKV_KV_F32};
    pkvt_engine_open(&other, pkvt_path("golden/tiny/llama.gguf"), &options);
    refuse(&other, path, PKV_ERR_INVALID);
    assert_non_null(strstr(pkv_error_text(), "f16"));
    pkvt_engine_close(&other);
    const struct pkvt_engine_options same = {.threads = 1, .context = 256, .sequences = 2};
    pkvt_engine_open(&other, pkvt_path("golden/tiny/llama.gguf"), &same);
    struct pkv_seq *seq = NULL;
    assert_ok(load(&other, path, &seq));
    pkvt_engine_close(&other);
}

/* A session with smaller rings takes what it has room for, and knows what it does not have. */
static void test_saved__smaller_rings__cut_only_as_far_as_they_hold(void **state)
{
    (void)state;
    struct pkvt_engine wide, narrow;
    struct pkv_seq *seq = NULL, *cold = NULL;
    float want[VOCAB];
    const float *logits = NULL;
    open_engine(&wide, "gemma3", 256, 200, 0);
    save(&wide, path);
    open_engine(&narrow, "gemma3", 256, 8, 0);
    assert_ok(load(&narrow, path, &seq));
    uint32_t cut = TOKENS;
    while (cut > 1 && pkv_seq_truncate(seq, cut - 1) == PKV_OK) {
        cut--;
    }
    assert_true(cut > 1 && cut < TOKENS);
    assert_ok(pkv_prompt_run(narrow.session, seq, ids + cut, 40, NULL, &logits));
    memcpy(want, logits, sizeof want);
    assert_ok(pkv_seq_open(wide.session, &cold));
    assert_ok(pkv_prompt_run(wide.session, cold, ids, cut + 40, NULL, &logits));
    assert_memory_equal(want, logits, sizeof want);
    pkvt_engine_close(&narrow);
    pkvt_engine_close(&wide);
}

/* Every byte of a file can be missing on the disk: what was there before stays. */
static void test_save__disk_is_full__old_file_stays(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_seq *seq = NULL;
    size_t bytes = 0, after = 0;
    open_engine(&engine, "llama", 256, 32, 0);
    save(&engine, path);
    char *before = pkvt_read_file(path, &bytes);
    const struct pkv_saved_info info = {.ids = ids, .id_count = TOKENS};
    assert_ok(load(&engine, path, &seq));
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = limit;
    small.rlim_cur = bytes / 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const enum pkv_status status = pkv_seq_save(seq, path, &info);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, PKV_ERR_IO);
    char *now = pkvt_read_file(path, &after), left[128];
    assert_int_equal(after, bytes);
    assert_memory_equal(now, before, bytes);
    snprintf(left, sizeof left, "%s.%ld.tmp", path, (long)getpid());
    assert_int_equal(access(left, F_OK), -1);
    assert_status(pkv_seq_save(seq, "/nowhere/at/all", &info), PKV_ERR_IO);
    assert_status(pkv_seq_save(seq, "/dev/full", &info), PKV_ERR_IO);
    assert_status(pkv_seq_save(seq, "", &info), PKV_ERR_INVALID);
    free(before);
    free(now);
    pkvt_engine_close(&engine);
}

/* Slots behind the last token hold what other sequences left there: not in the file. */
static void test_save__rest_of_the_last_block__is_zero(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    size_t bytes = 0, other_bytes = 0;
    open_engine(&engine, "gemma3", 256, 32, 0);
    save(&engine, path);
    pkvt_engine_close(&engine);
    open_engine(&engine, "gemma3", 256, 32, 0);
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    assert_ok(pkv_seq_open(engine.session, &seq)); /* its pages are the next one's */
    assert_ok(pkv_prompt_run(engine.session, seq, ids + 7, 200, NULL, &logits));
    pkv_seq_close(seq);
    save(&engine, other_path);
    char *a = pkvt_read_file(path, &bytes), *b = pkvt_read_file(other_path, &other_bytes);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    pkvt_engine_close(&engine);
}

/* ---- hot sets ---- */

#define HOT_CONTEXT 640u
#define HOT_TOKENS 420u
#define HOT_STEPS 80u

static void open_hot(struct pkvt_engine *engine, const char *policy, uint64_t budget_bytes)
{
    const struct pkvt_engine_options options = {.threads = 1,
                                                .context = HOT_CONTEXT,
                                                .sequences = 2,
                                                .parked = budget_bytes > 0,
                                                .step_rows = 32,
                                                .recent = 16,
                                                .policy = policy,
                                                .budget_bytes = budget_bytes};
    pkvt_engine_open(engine, pkvt_path("golden/tiny/gemma3.gguf"), &options);
}

/* Steps [first, end) of a text, one token each; logits of the last to `out`. */
static void steps(struct pkvt_engine *engine, struct pkv_seq *seq, uint32_t first, uint32_t end,
                  float *out)
{
    const float *logits = NULL;
    for (uint32_t i = first; i < end; i++) {
        const int32_t id = ids[i % (sizeof ids / sizeof *ids)];
        const struct pkv_step_part part = {.seq = seq, .ids = &id, .count = 1, .logit_rows = 1};
        assert_ok(pkv_step_run(engine->session, &part, 1, &logits));
        memcpy(out + (size_t)(i - first) * VOCAB, logits, VOCAB * sizeof *out);
    }
}

/* A sequence that has decoded for a while over its hot set. */
static struct pkv_seq *hot_sequence(struct pkvt_engine *engine)
{
    static float out[HOT_STEPS * VOCAB];
    struct pkv_seq *seq = NULL;
    const float *logits = NULL;
    assert_ok(pkv_seq_open(engine->session, &seq));
    assert_ok(pkv_prompt_run(engine->session, seq, ids, 340, NULL, &logits));
    steps(engine, seq, 340, HOT_TOKENS, out);
    return seq;
}

static void save_hot(struct pkv_seq *seq, const char *to)
{
    int32_t all[HOT_TOKENS];
    for (uint32_t i = 0; i < HOT_TOKENS; i++) {
        all[i] = ids[i % (sizeof ids / sizeof *ids)];
    }
    const struct pkv_saved_info info = {.ids = all, .id_count = HOT_TOKENS};
    assert_ok(pkv_seq_save(seq, to, &info));
}

static uint32_t slots_of(struct pkv_seq *seq, int32_t *tokens)
{
    uint32_t count = 0, all = 0;
    for (uint32_t l = 0;
         l < 12 && pkv_seq_hot_tokens(seq, l, 0, tokens + all, 1000, &count) == PKV_OK; l++) {
        all += count;
    }
    return all;
}

static void test_saved__hot_set__goes_on_bit_for_bit(void **state)
{
    (void)state;
    static float want[HOT_STEPS * VOCAB], got[HOT_STEPS * VOCAB];
    static int32_t before[8000], after[8000];
    static const char *const policies[] = {"pivot-norecall", "pivot", "snapkv", "h2o", "window"};
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        struct pkvt_engine engine, other;
        struct pkv_seq *seq = NULL, *parked = NULL;
        open_hot(&engine, policies[p], 112 * 1024);
        seq = hot_sequence(&engine);
        const uint32_t slots = slots_of(seq, before);
        assert_true(slots >= 4);
        save_hot(seq, path);
        steps(&engine, seq, HOT_TOKENS, HOT_TOKENS + HOT_STEPS, want);
        pkvt_engine_close(&engine);

        open_hot(&other, policies[p], 112 * 1024);
        assert_ok(load(&other, path, &seq));
        assert_int_equal(slots_of(seq, after), slots);
        assert_memory_equal(before, after, slots * sizeof *before);
        assert_ok(pkv_seq_park(seq));
        save_hot(seq, other_path); /* the same file */
        assert_ok(load(&other, other_path, &parked));
        steps(&other, parked, HOT_TOKENS, HOT_TOKENS + HOT_STEPS, got);
        assert_memory_equal(want, got, sizeof want);
        assert_ok(pkv_seq_unpark(seq));
        steps(&other, seq, HOT_TOKENS, HOT_TOKENS + HOT_STEPS, got);
        assert_memory_equal(want, got, sizeof want);
        pkvt_engine_close(&other);
        size_t bytes = 0, other_bytes = 0;
        char *a = pkvt_read_file(path, &bytes), *b = pkvt_read_file(other_path, &other_bytes);
        assert_int_equal(bytes, other_bytes);
        assert_memory_equal(a, b, bytes);
        free(a);
        free(b);
    }
}

/* Another policy, another budget, or none: the sequence goes on, its hot set is made anew. */
static void test_saved__hot_set_of_another_kind__left_out(void **state)
{
    (void)state;
    static float want[HOT_STEPS * VOCAB], got[HOT_STEPS * VOCAB];
    struct pkvt_engine engine, other;
    struct pkv_seq *seq = NULL;
    open_hot(&engine, "pivot-norecall", 104 * 1024);
    save_hot(hot_sequence(&engine), path);
    pkvt_engine_close(&engine);
    static const struct {
        const char *policy;
        uint64_t budget;
    } others[] = {
        {"snapkv", 104 * 1024}, {"pivot-norecall", 116 * 1024}, {NULL, 104 * 1024}, {NULL, 0}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        open_hot(&other, others[i].policy, others[i].budget);
        assert_ok(load(&other, path, &seq));
        assert_int_equal(slots_of(seq, (int32_t[8000]){0}), 0);
        steps(&other, seq, HOT_TOKENS, HOT_TOKENS + 1, i < 3 ? got : want);
        pkvt_engine_close(&other);
        if (i >= 2) { /* exact: whatever the hot set was, K and V of all tokens are there */
            open_hot(&other, others[5 - i].policy, others[5 - i].budget);
            assert_ok(load(&other, path, &seq));
            steps(&other, seq, HOT_TOKENS, HOT_TOKENS + 1, want);
            pkvt_engine_close(&other);
            assert_memory_equal(want, got, VOCAB * sizeof *want);
        }
    }
}

/* Every byte of the hot set's words, and what they say where its checksum holds. */
static void test_saved__hot_set_damaged__refused(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    size_t bytes = 0;
    struct pkv_saved *saved = NULL;
    open_hot(&engine, "pivot-norecall", 104 * 1024);
    struct pkv_seq *seq = hot_sequence(&engine);
    save_hot(seq, path);
    pkv_seq_close(seq);
    assert_ok(pkv_saved_open(path, &saved));
    const uint64_t at = pkvi_saved_hot_offset(saved), end = pkvi_saved_hot_bytes_offset(saved);
    const uint32_t words = saved->header.hot_words;
    pkv_saved_close(saved);
    char *data = pkvt_read_file(path, &bytes);
    assert_true(words > 0 && end + 8 < bytes);
    for (uint64_t i = at; i < bytes; i += i < end ? 1 : (bytes - end) / 40) {
        data[i] = (char)(data[i] ^ 4);
        write_file(other_path, data, bytes);
        refuse(&engine, other_path, PKV_ERR_CORRUPT);
        data[i] = (char)(data[i] ^ 4);
    }
    static const uint32_t values[] = {0, 1, 33, 1000, 0x7fffffff, 0xffffffff};
    uint32_t refused = 0;
    for (uint32_t i = 0; i < words * 6; i++) {
        uint32_t before;
        memcpy(&before, data + at + i / 6 * 4, sizeof before);
        memcpy(data + at + i / 6 * 4, &values[i % 6], sizeof before);
        const uint64_t checksum = pkvi_hash(data + at, words * 4ull, 0);
        memcpy(data + at + words * 4ull, &checksum, sizeof checksum);
        write_file(other_path, data, bytes);
        const enum pkv_status status = load(&engine, other_path, &seq);
        if (status == PKV_OK) { /* another shape, or one that can be */
            float out[VOCAB];
            steps(&engine, seq, HOT_TOKENS, HOT_TOKENS + 1, out);
            pkv_seq_close(seq);
        } else {
            assert_int_equal(status, PKV_ERR_CORRUPT);
            refused++;
        }
        memcpy(data + at + i / 6 * 4, &before, sizeof before);
    }
    assert_true(refused > words);
    seq = NULL;
    refuse(&engine, "/dev/null", PKV_ERR_IO);
    free(data);
    pkvt_engine_close(&engine);
}

static void test_seq__states__refused_where_wrong(void **state)
{
    (void)state;
    struct pkvt_engine engine;
    struct pkv_seq *a = NULL, *b = NULL, *c = NULL;
    const float *logits = NULL;
    const struct pkvt_engine_options options = {.threads = 1,
                                                .context = 256,
                                                .sequences = 1,
                                                .parked = 1,
                                                .budget_bytes = UINT64_C(1) << 30};
    pkvt_engine_open(&engine, pkvt_path("golden/tiny/gemma3.gguf"), &options);
    assert_ok(pkv_seq_open(engine.session, &a));
    assert_ok(pkv_prompt_run(engine.session, a, ids, TOKENS, NULL, &logits));
    assert_status(pkv_seq_unpark(a), PKV_ERR_STATE);
    assert_status(pkv_seq_fork(a, &b), PKV_ERR_NO_SLOT);
    assert_ok(pkv_seq_park(a));
    assert_true(pkv_seq_parked(a));
    assert_status(pkv_seq_park(a), PKV_ERR_STATE);
    assert_status(pkv_seq_fork(a, &b), PKV_ERR_STATE);
    struct pkv_step_part part = {.seq = a, .ids = ids, .count = 1, .logit_rows = 1};
    assert_status(pkv_step_run(engine.session, &part, 1, &logits), PKV_ERR_STATE);
    assert_ok(pkv_seq_open(engine.session, &b));
    assert_ok(pkv_prompt_run(engine.session, b, ids, TOKENS, NULL, &logits));
    assert_status(pkv_seq_park(b), PKV_ERR_NO_SLOT);
    assert_status(pkv_seq_unpark(a), PKV_ERR_NO_SLOT);
    assert_status(pkv_seq_open(engine.session, &c), PKV_ERR_NO_SLOT);
    pkv_seq_close(b);
    assert_ok(pkv_seq_unpark(a));
    assert_false(pkv_seq_parked(a));
    assert_ok(pkv_step_run(engine.session, &part, 1, &logits));
    pkvt_engine_close(&engine);
}

static int set_up(void **state)
{
    (void)state;
    struct pkvt_rng rng = {.state = 11};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        ids[i] = (int32_t)pkvt_rng_below(&rng, VOCAB);
    }
    snprintf(path, sizeof path, P_tmpdir "/saved.%ld.kv", (long)getpid());
    snprintf(other_path, sizeof other_path, "%s.other", path);
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    unlink(path);
    unlink(other_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_saved__ids_and_note__come_back),
        cmocka_unit_test(test_saved__any_byte_changed_or_missing__refused),
        cmocka_unit_test(test_saved__lying_header__refused_before_memory_is_asked),
        cmocka_unit_test(test_saved__older_version__refused_naming_both),
        cmocka_unit_test(test_saved__another_model_type_or_context__refused),
        cmocka_unit_test(test_saved__smaller_rings__cut_only_as_far_as_they_hold),
        cmocka_unit_test(test_save__disk_is_full__old_file_stays),
        cmocka_unit_test(test_save__rest_of_the_last_block__is_zero),
        cmocka_unit_test(test_saved__hot_set__goes_on_bit_for_bit),
        cmocka_unit_test(test_saved__hot_set_of_another_kind__left_out),
        cmocka_unit_test(test_saved__hot_set_damaged__refused),
        cmocka_unit_test(test_seq__states__refused_where_wrong),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
