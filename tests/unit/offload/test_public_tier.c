/* The public tier's contract: right numbers; what is refused, with which words, and that a refusal
 * changes nothing. */
#include "tests/support/tier_case.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/tolerance.h"

#define TOKENS ((uint32_t)PKVT_TIER_CONTEXT)
#define STEP_ROWS ((uint32_t)PKVT_TIER_STEP_ROWS)

static struct pkv_device *device;
static uint32_t ids[3][PKVT_TIER_CONTEXT];
static pkvt_tier_out got, want;

/* Refused with this status, in these words. */
static void assert_refused(enum pkv_status status, enum pkv_status expected, const char *words)
{
    assert_status(status, expected);
    if (!strstr(pkv_error_text(), words)) {
        fail_msg("message '%s' does not say '%s'", pkv_error_text(), words);
    }
}

static uint32_t open_seq(struct pkvt_tier *t)
{
    uint32_t seq = 99;
    assert_ok(pkv_tier_seq_open(t->tier, &seq));
    return seq;
}

static struct pkvt_tier_part part_of(uint32_t seq, uint32_t text, uint32_t first, uint32_t rows)
{
    return (struct pkvt_tier_part){.seq = seq, .first = first, .rows = rows, .ids = ids[text]};
}

static void run(struct pkvt_tier *t, struct pkvt_tier_part part)
{
    assert_ok(pkvt_tier_pass(t, &part, 1, 0, got));
}

/* Every layer of a row of `got` is what plain attention says. */
static void assert_row(uint32_t row, const uint32_t *text, uint32_t position)
{
    for (uint32_t l = 0; l < PKVT_TIER_LAYERS; l++) {
        double plain[PKVT_TIER_COLS];
        char what[64];
        const uint32_t cols = pkvt_tier_want(text, position, l, plain);
        snprintf(what, sizeof what, "layer %u, position %u", l, position);
        pkvt_assert_close(what, got[l][row], plain, cols, PKVT_EPS_F32, TOKENS);
    }
}

static void test_attend__prompt_steps_and_batches__what_plain_attention_says(void **state)
{
    (void)state;
    struct pkvt_tier t;
    struct pkv_kv_report report;
    const struct pkv_tier_config config = pkvt_tier_least(device);
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t a = open_seq(&t), b = open_seq(&t);
    run(&t, part_of(a, 0, 0, 500));
    for (uint32_t row = 0; row < 500; row += 83) {
        assert_row(row, ids[0], row);
    }
    struct pkvt_tier_part part = part_of(b, 1, 0, 5 * STEP_ROWS + 7);
    assert_ok(pkvt_tier_pass(&t, &part, 1, 2 * STEP_ROWS, got)); /* in pieces */
    assert_row(part.rows - 1, ids[1], part.rows - 1);
    struct pkvt_tier_part both[] = {part_of(b, 1, part.rows, 3), part_of(a, 0, 500, 40)};
    assert_ok(pkvt_tier_pass(&t, both, 2, 0, got));
    assert_row(2, ids[1], part.rows + 2);
    assert_row(3, ids[0], 500);
    assert_row(42, ids[0], 539);
    run(&t, part_of(a, 0, 540, 1));
    assert_row(0, ids[0], 540);
    assert_int_equal(pkv_tier_seq_tokens(t.tier, a), 541);
    assert_int_equal(pkv_tier_seq_tokens(t.tier, b), part.rows + 3);
    pkv_tier_report(t.tier, &report);
    assert_true(report.loaded_tiles > 0 && report.stored_bytes > 0 && report.streamed_layers > 0);
    pkvt_tier_close(&t);
}

static void test_attend__scale_and_softcap__used(void **state)
{
    (void)state;
    struct pkvt_tier t;
    struct pkv_tier_config config = pkvt_tier_dense();
    config.attention_scale = 0.25f; /* 1 / sqrt(16): layer 2 as by default, layer 0 not */
    assert_ok(pkvt_tier_open(&t, device, &config));
    run(&t, part_of(open_seq(&t), 0, 0, 30));
    memcpy(want, got, sizeof want);
    pkvt_tier_close(&t);
    config.attention_scale = 0;
    assert_ok(pkvt_tier_open(&t, device, &config));
    run(&t, part_of(open_seq(&t), 0, 0, 30));
    assert_memory_equal(got[2], want[2], sizeof want[2]);
    assert_memory_not_equal(got[0], want[0], sizeof want[0]);
    pkvt_tier_close(&t);
    memcpy(want, got, sizeof want);
    config.attention_softcap = 2.0f;
    assert_ok(pkvt_tier_open(&t, device, &config));
    run(&t, part_of(open_seq(&t), 0, 0, 30));
    assert_memory_not_equal(got[0], want[0], sizeof want[0]);
    pkvt_tier_close(&t);
}

static void test_config__bad_field__named(void **state)
{
    (void)state;
    struct pkv_layer_info layers[2];
    const struct pkv_layer_info good = {.heads = 4, .kv_heads = 2, .head_dim = 32};
    const struct {
        struct pkv_layer_info layer;
        enum pkv_status status;
        const char *words;
    } cases[] = {
        {{.heads = 4, .kv_heads = 3, .head_dim = 32}, PKV_ERR_INVALID, "layer 1: 3 KV heads"},
        {{.heads = 4, .kv_heads = 0, .head_dim = 32}, PKV_ERR_INVALID, "layer 1: 0 KV heads"},
        {{.heads = 0, .kv_heads = 1, .head_dim = 32}, PKV_ERR_RANGE, "layer 1: 0 heads"},
        {{.heads = 1 << 20, .kv_heads = 1, .head_dim = 32}, PKV_ERR_RANGE, "heads"},
        {{.heads = 4, .kv_heads = 2, .head_dim = 33}, PKV_ERR_RANGE, "head size 33"},
        {{.heads = 4, .kv_heads = 2, .head_dim = 0}, PKV_ERR_RANGE, "head size 0"},
        {{.heads = 4, .kv_heads = 2, .head_dim = 514}, PKV_ERR_RANGE, "head size 514"},
        {{.heads = 4, .kv_heads = 2, .head_dim = 32, .window = 9}, PKV_ERR_INVALID, "window 9"},
        {{.kind = PKV_LAYER_SLIDING, .heads = 4, .kv_heads = 2, .head_dim = 32},
         PKV_ERR_INVALID,
         "window 0"},
        {{.kind = (enum pkv_layer_kind)7, .heads = 4, .kv_heads = 2, .head_dim = 32},
         PKV_ERR_INVALID,
         "kind 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pkv_tier_config config = pkvt_tier_config();
        struct pkv_tier *tier = NULL;
        struct pkv_tier_sizes sizes = {.full_bytes = 7};
        layers[0] = good;
        layers[1] = cases[i].layer;
        config.layer = layers;
        config.layers = 2;
        assert_refused(pkv_tier_plan(device, &config, &sizes), cases[i].status, cases[i].words);
        assert_refused(pkv_tier_open(device, &config, &tier), cases[i].status, cases[i].words);
        assert_null(tier);
        assert_int_equal(sizes.full_bytes, 7);
    }
}

static void refuse(struct pkv_tier_config config, enum pkv_status status, const char *words)
{
    struct pkv_tier *tier = NULL;
    assert_refused(pkv_tier_open(device, &config, &tier), status, words);
    assert_null(tier);
}

#define REFUSE(field, value, status, words)                                                        \
    do {                                                                                           \
        struct pkv_tier_config refuse_config = pkvt_tier_config();                                 \
        refuse_config.field = (value);                                                             \
        refuse(refuse_config, status, words);                                                      \
    } while (0)

static void test_config__bad_number__named(void **state)
{
    (void)state;
    int stream = 0;
    struct pkv_tier_config large = pkvt_tier_config();
    large.context_tokens = 1u << 30;
    large.sequences = large.step_rows = 40;
    refuse(large, PKV_ERR_RANGE, "more pages than 32 bits count");
    REFUSE(struct_bytes, 8, PKV_ERR_INVALID, "struct_bytes 8");
    REFUSE(layer, NULL, PKV_ERR_RANGE, "0 layers");
    REFUSE(layers, 0, PKV_ERR_RANGE, "0 layers");
    REFUSE(layers, 1025, PKV_ERR_RANGE, "1025 layers");
    REFUSE(context_tokens, 0, PKV_ERR_RANGE, "context of 0");
    REFUSE(context_tokens, UINT32_MAX, PKV_ERR_RANGE, "context of");
    REFUSE(sequences, 0, PKV_ERR_RANGE, "0 sequences");
    REFUSE(parked_sequences, 5000, PKV_ERR_RANGE, "5000 parked");
    REFUSE(step_rows, 1, PKV_ERR_RANGE, "1 rows a step");
    REFUSE(step_rows, 1u << 20, PKV_ERR_RANGE, "rows a step");
    REFUSE(kv_type, (enum pkv_kv_type)9, PKV_ERR_INVALID, "KV type 9");
    REFUSE(kv_type, PKV_KV_Q8_0, PKV_ERR_UNSUPPORTED, "head size 16 of layer 2");
    REFUSE(kv_policy, (enum pkv_kv_policy)9, PKV_ERR_INVALID, "KV policy 9");
    REFUSE(kv_policy, PKV_KV_DEVICE, PKV_ERR_INVALID, "neither a budget");
    REFUSE(kv_resident, (enum pkv_full_resident)3, PKV_ERR_INVALID, "kv_resident 3");
    REFUSE(kv_budget_bytes, 1, PKV_ERR_RANGE, "KV budget of 1 bytes");
    REFUSE(kv_host_bytes, 1, PKV_ERR_NO_MEMORY, "the limit is 1");
    REFUSE(attention_scale, -1.0f, PKV_ERR_RANGE, "scale -1");
    REFUSE(attention_softcap, 0.0f / 0.0f, PKV_ERR_RANGE, "softcap");
    REFUSE(compute_stream, &stream, PKV_ERR_UNSUPPORTED, "cpu device has no streams");
}

static void test_plan__every_policy__device_memory_is_what_is_taken(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct pkv_tier_config config = i == 0   ? pkvt_tier_dense()
                                        : i == 1 ? pkvt_tier_config()
                                                 : pkvt_tier_least(device);
        struct pkv_device_config limited = pkv_device_config_default();
        struct pkv_tier_sizes sizes;
        limited.threads = 2;
        for (uint64_t less = 0; less < 2; less++) {
            struct pkv_device *small = NULL;
            struct pkv_tier *tier = NULL;
            assert_ok(pkv_device_open("cpu", &limited, &small));
            assert_ok(pkv_tier_plan(small, &config, &sizes));
            pkv_device_close(small);
            limited.memory_bytes = sizes.device_bytes - less;
            assert_ok(pkv_device_open("cpu", &limited, &small));
            assert_status(pkv_tier_open(small, &config, &tier), less ? PKV_ERR_NO_MEMORY : PKV_OK);
            pkv_tier_close(tier);
            pkv_device_close(small);
        }
        /* 2 x 32 + 3 x 16 channels of K and of V, 4 bytes each, a token */
        assert_int_equal(sizes.full_bytes, TOKENS * 112 * 2 * 4);
        assert_int_equal(sizes.global_layers, 2);
        assert_int_equal(sizes.dense_layers, i == 2 ? 0 : 2);
        assert_int_equal(sizes.prompt_rows, TOKENS);
        assert_int_equal(sizes.step_rows, STEP_ROWS);
        assert_int_equal(sizes.least_budget_bytes > 0, i == 2);
    }
}

static void test_pass__calls_out_of_order__refused_and_nothing_changed(void **state)
{
    (void)state;
    struct pkvt_tier t;
    const struct pkv_tier_config config = pkvt_tier_least(device);
    const uint32_t rows = 2 * STEP_ROWS + 5;
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t seq = open_seq(&t);
    const struct pkv_tier_part part = {.seq = seq, .rows = rows};
    struct pkvt_tier_part made = part_of(seq, 0, 0, rows);
    struct pkv_tier_rows all = {
        .layer = 0, .rows = rows, .q = t.q, .k = t.k, .v = t.v, .out = t.out};
    uint32_t other = 7;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_STATE, "no pass has begun");
    assert_refused(pkv_tier_end(t.tier), PKV_ERR_STATE, "no pass has begun");
    assert_refused(pkv_tier_abort(t.tier), PKV_ERR_STATE, "no pass has begun");
    assert_ok(pkv_tier_begin(t.tier, &part, 1));
    assert_refused(pkv_tier_begin(t.tier, &part, 1), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_open(t.tier, &other), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_close(t.tier, seq), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_truncate(t.tier, seq, 0), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_fork(t.tier, seq, &other), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_park(t.tier, seq), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_seq_unpark(t.tier, seq), PKV_ERR_STATE, "within a pass");
    assert_refused(pkv_tier_end(t.tier), PKV_ERR_STATE, "layer 0 of 3 from row 0");
    assert_int_equal(other, 7);
    assert_int_equal(pkv_tier_seq_tokens(t.tier, seq), 0);
    assert_refused(pkv_tier_attend(t.tier, NULL), PKV_ERR_INVALID, "NULL");
    all.layer = 1;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_STATE, "layer 0 from row 0 is next");
    all.layer = 0;
    all.rows = rows + 1;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_RANGE, "expected the 101 that are left");
    all.rows = STEP_ROWS - 1;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_RANGE, "a multiple of 48");
    all.rows = 0;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_RANGE, "0 rows");
    assert_ok(pkvt_tier_layer(&t, &made, 1, 0, 0, STEP_ROWS, 0, got));
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_STATE, "layer 0 from row 48 is next");
    assert_refused(pkv_tier_end(t.tier), PKV_ERR_STATE, "layer 0 of 3 from row 48 of 101");
    assert_ok(pkvt_tier_layer(&t, &made, 1, 0, STEP_ROWS, rows - STEP_ROWS, 0, got));
    assert_ok(pkvt_tier_layer(&t, &made, 1, 1, 0, rows, 0, got));
    assert_ok(pkvt_tier_layer(&t, &made, 1, 2, 0, rows, 0, got));
    all.layer = 3;
    all.rows = rows;
    assert_refused(pkv_tier_attend(t.tier, &all), PKV_ERR_STATE, "end it");
    assert_ok(pkv_tier_end(t.tier));
    assert_int_equal(pkv_tier_seq_tokens(t.tier, seq), rows);
    for (uint32_t row = 0; row < rows; row += 20) {
        assert_row(row, ids[0], row);
    }
    pkvt_tier_close(&t);
}

static void test_attend__bad_operands__named(void **state)
{
    (void)state;
    struct pkvt_tier t;
    const struct pkv_tier_config config = pkvt_tier_config();
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t seq = open_seq(&t);
    struct pkvt_tier_part made = part_of(seq, 0, 0, 4);
    const struct pkv_tier_part part = {.seq = seq, .rows = 4};
    const struct pkv_tier_rows good = {
        .layer = 0, .rows = 4, .q = t.q, .k = t.k, .v = t.v, .out = t.out};
    struct pkv_tier_rows bad = good;
    assert_ok(pkv_tier_begin(t.tier, &part, 1));
    bad.v = 0;
    assert_refused(pkv_tier_attend(t.tier, &bad), PKV_ERR_INVALID, "v at address 0");
    bad = good;
    bad.out += 2;
    assert_refused(pkv_tier_attend(t.tier, &bad), PKV_ERR_INVALID, "out at address");
    bad = good;
    bad.k_stride = 63;
    assert_refused(pkv_tier_attend(t.tier, &bad), PKV_ERR_INVALID,
                   "k_stride 63: expected 64 or more");
    bad = good;
    bad.out = bad.q + 3 * 128 * sizeof(float);
    assert_refused(pkv_tier_attend(t.tier, &bad), PKV_ERR_INVALID, "out and q overlap");
    assert_refused(pkv_tier_write(t.tier, 0, got, 4), PKV_ERR_INVALID, "address 0");
    assert_refused(pkv_tier_read(t.tier, NULL, t.q, 4), PKV_ERR_INVALID, "address 0");
    assert_refused(pkv_tier_write(t.tier, t.q, got, SIZE_MAX), PKV_ERR_RANGE, "last address");
    assert_ok(pkv_tier_write(t.tier, t.q, got, 0));
    for (uint32_t l = 0; l < PKVT_TIER_LAYERS; l++) {
        assert_ok(pkvt_tier_layer(&t, &made, 1, l, 0, 4, 0, got));
    }
    assert_ok(pkv_tier_end(t.tier));
    assert_row(3, ids[0], 3);
    pkvt_tier_close(&t);
}

static void test_begin__bad_parts__refused_and_nothing_changed(void **state)
{
    (void)state;
    struct pkvt_tier t;
    const struct pkv_tier_config config = pkvt_tier_config();
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t a = open_seq(&t), b = open_seq(&t);
    struct pkv_tier_part parts[3] = {{.seq = a, .rows = 1}, {.seq = a, .rows = 1}};
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_INVALID, "sequence 0 stands in");
    assert_refused(pkv_tier_begin(t.tier, parts, 0), PKV_ERR_RANGE, "0 sequences");
    assert_refused(pkv_tier_begin(t.tier, parts, 3), PKV_ERR_RANGE, "3 sequences: expected 1 to 2");
    assert_refused(pkv_tier_begin(t.tier, NULL, 1), PKV_ERR_RANGE, "0 sequences");
    parts[1].seq = 2;
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_INVALID, "sequence 2 is not open");
    parts[1].seq = 4000;
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_INVALID, "sequence 4000 is not open");
    parts[1] = (struct pkv_tier_part){.seq = b, .rows = 0};
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_INVALID, "0 rows of sequence 1");
    parts[1].rows = STEP_ROWS;
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_RANGE, "49 rows of 2 sequences");
    parts[1].rows = TOKENS + 1;
    assert_refused(pkv_tier_begin(t.tier, parts, 2), PKV_ERR_RANGE, "context is full: 0 tokens");
    run(&t, part_of(a, 0, 0, TOKENS));
    assert_refused(pkv_tier_begin(t.tier, parts, 1), PKV_ERR_RANGE, "context is full: 640 tokens");
    assert_ok(pkv_tier_seq_park(t.tier, a));
    assert_refused(pkv_tier_begin(t.tier, parts, 1), PKV_ERR_STATE, "sequence 0 is parked");
    run(&t, part_of(b, 1, 0, 9));
    assert_row(8, ids[1], 8);
    pkvt_tier_close(&t);
}

static void test_sequences__bad_requests__refused_and_nothing_changed(void **state)
{
    (void)state;
    struct pkvt_tier t;
    uint32_t other = 77;
    const struct pkv_tier_config config = pkvt_tier_least(device);
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t a = open_seq(&t);
    run(&t, part_of(a, 0, 0, 300));
    assert_refused(pkv_tier_seq_truncate(t.tier, a, 301), PKV_ERR_RANGE, "the sequence has 300");
    assert_refused(pkv_tier_seq_truncate(t.tier, a, 100), PKV_ERR_RANGE, "layer 1 keeps a ring");
    assert_refused(pkv_tier_seq_unpark(t.tier, a), PKV_ERR_STATE, "sequence 0 is not parked");
    assert_refused(pkv_tier_seq_close(t.tier, 1), PKV_ERR_INVALID, "sequence 1 is not open");
    assert_refused(pkv_tier_seq_park(t.tier, 3), PKV_ERR_INVALID, "sequence 3 is not open");
    assert_ok(pkv_tier_seq_fork(t.tier, a, &other));
    assert_int_equal(other, 1);
    assert_int_equal(pkv_tier_seq_tokens(t.tier, other), 300);
    assert_refused(pkv_tier_seq_open(t.tier, &other), PKV_ERR_NO_SLOT, "on the device are in use");
    assert_refused(pkv_tier_seq_fork(t.tier, a, &other), PKV_ERR_NO_SLOT, "are in use");
    assert_ok(pkv_tier_seq_park(t.tier, 1));
    assert_true(pkv_tier_seq_parked(t.tier, 1) && !pkv_tier_seq_parked(t.tier, a));
    assert_refused(pkv_tier_seq_park(t.tier, 1), PKV_ERR_STATE, "is parked");
    assert_refused(pkv_tier_seq_park(t.tier, a), PKV_ERR_NO_SLOT, "parked sequences are in use");
    assert_refused(pkv_tier_seq_fork(t.tier, 1, &other), PKV_ERR_STATE, "is parked");
    assert_ok(pkv_tier_seq_open(t.tier, &other));
    assert_int_equal(other, 2);
    assert_refused(pkv_tier_seq_open(t.tier, &other), PKV_ERR_NO_SLOT, "all 3 sequences");
    assert_refused(pkv_tier_seq_unpark(t.tier, 1), PKV_ERR_NO_SLOT, "on the device are in use");
    run(&t, part_of(a, 0, 300, 2));
    assert_row(1, ids[0], 301);
    assert_ok(pkv_tier_seq_close(t.tier, other));
    assert_int_equal(pkv_tier_seq_tokens(t.tier, other), 0);
    assert_ok(pkv_tier_seq_unpark(t.tier, 1));
    run(&t, part_of(1, 0, 300, 1));
    assert_row(0, ids[0], 300);
    assert_ok(pkv_tier_seq_truncate(t.tier, 1, 290));
    run(&t, part_of(1, 0, 290, 1));
    assert_row(0, ids[0], 290);
    pkvt_tier_close(&t);
}

/* Layer 0 and a part of layer 1, then no more. */
static void abandon(struct pkvt_tier *t, struct pkvt_tier_part made)
{
    const struct pkv_tier_part part = {.seq = made.seq, .rows = made.rows};
    assert_ok(pkv_tier_begin(t->tier, &part, 1));
    assert_ok(pkvt_tier_layer(t, &made, 1, 0, 0, made.rows, 0, got));
    const uint32_t some = made.rows > STEP_ROWS ? STEP_ROWS : made.rows;
    assert_ok(pkvt_tier_layer(t, &made, 1, 1, 0, some, 0, got));
    assert_ok(pkv_tier_abort(t->tier));
}

static void test_abort__within_a_pass__as_before_or_empty(void **state)
{
    (void)state;
    struct pkvt_tier t;
    const struct pkv_tier_config config = pkvt_tier_least(device);
    assert_ok(pkvt_tier_open(&t, device, &config));
    const uint32_t seq = open_seq(&t);
    abandon(&t, part_of(seq, 1, 0, 200));
    run(&t, part_of(seq, 0, 0, 150));
    abandon(&t, part_of(seq, 0, 150, 20));
    assert_int_equal(pkv_tier_seq_tokens(t.tier, seq), 150);
    run(&t, part_of(seq, 0, 150, 3));
    assert_row(2, ids[0], 152);
    abandon(&t, part_of(seq, 0, 153, 300)); /* more than the ring of layer 1 */
    assert_int_equal(pkv_tier_seq_tokens(t.tier, seq), 0);
    run(&t, part_of(seq, 1, 0, 60));
    assert_row(59, ids[1], 59);
    const struct pkv_tier_part part = {.seq = seq, .rows = 1};
    assert_ok(pkv_tier_begin(t.tier, &part, 1));
    pkvt_tier_close(&t); /* within a pass */
}

static void test_null__everywhere__told(void **state)
{
    (void)state;
    struct pkv_tier_config config = pkvt_tier_config();
    struct pkv_tier *tier = NULL;
    struct pkv_tier_sizes sizes;
    pkv_addr addr = 5;
    uint32_t seq = 0;
    assert_refused(pkv_tier_plan(device, &config, NULL), PKV_ERR_INVALID, "NULL");
    assert_refused(pkv_tier_plan(device, NULL, &sizes), PKV_ERR_INVALID, "struct_bytes");
    assert_refused(pkv_tier_plan(NULL, &config, &sizes), PKV_ERR_INVALID, "NULL");
    assert_refused(pkv_tier_open(device, &config, NULL), PKV_ERR_INVALID, "NULL");
    assert_refused(pkv_tier_open(NULL, &config, &tier), PKV_ERR_INVALID, "NULL");
    assert_refused(pkv_tier_seq_open(NULL, &seq), PKV_ERR_INVALID, "no tier");
    assert_refused(pkv_tier_wait(NULL), PKV_ERR_INVALID, "no tier");
    assert_refused(pkv_memory_alloc(device, 0, &addr), PKV_ERR_INVALID, "0 bytes");
    assert_int_equal(addr, 5);
    pkv_memory_free(device, 0);
    pkv_tier_close(NULL);
}

static int open_all(void **state)
{
    (void)state;
    struct pkvt_rng rng = {.state = 11};
    for (uint32_t i = 0; i < 3 * TOKENS; i++) {
        ids[i / TOKENS][i % TOKENS] = pkvt_rng_below(&rng, 1000);
    }
    return pkv_device_open("cpu", NULL, &device) == PKV_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    pkv_device_close(device);
    return 0;
}

/* No layer needs host memory then. */
static void test_open__only_sliding_layers__works(void **state)
{
    (void)state;
    const struct pkv_layer_info layer = {
        .kind = PKV_LAYER_SLIDING, .window = 64, .heads = 4, .kv_heads = 2, .head_dim = 32};
    struct pkv_tier_config config = pkv_tier_config_default();
    struct pkv_tier_sizes sizes;
    struct pkv_tier *tier = NULL;
    uint32_t seq = 0;
    config.layer = &layer;
    config.layers = 1;
    config.context_tokens = 256;
    assert_ok(pkv_tier_plan(device, &config, &sizes));
    assert_ok(pkv_tier_open(device, &config, &tier));
    assert_status(pkv_tier_seq_open(tier, NULL), PKV_ERR_INVALID);
    assert_ok(pkv_tier_seq_open(tier, &seq));
    assert_status(pkv_tier_seq_fork(tier, seq, NULL), PKV_ERR_INVALID);
    pkv_tier_close(tier);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open__only_sliding_layers__works),
        cmocka_unit_test(test_attend__prompt_steps_and_batches__what_plain_attention_says),
        cmocka_unit_test(test_attend__scale_and_softcap__used),
        cmocka_unit_test(test_config__bad_field__named),
        cmocka_unit_test(test_config__bad_number__named),
        cmocka_unit_test(test_plan__every_policy__device_memory_is_what_is_taken),
        cmocka_unit_test(test_pass__calls_out_of_order__refused_and_nothing_changed),
        cmocka_unit_test(test_attend__bad_operands__named),
        cmocka_unit_test(test_begin__bad_parts__refused_and_nothing_changed),
        cmocka_unit_test(test_sequences__bad_requests__refused_and_nothing_changed),
        cmocka_unit_test(test_abort__within_a_pass__as_before_or_empty),
        cmocka_unit_test(test_null__everywhere__told),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
