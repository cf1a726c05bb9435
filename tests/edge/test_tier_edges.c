/*
 * The KV tier's edges between streams (offload/transfer.c): a sequence that is parked, a prompt
 * through two streamed layers and some steps behind it, in every schedule. With all edges each
 * schedule gives the bits of a tier whose pages are all on the device; without any one of them the
 * adversarial schedule shows the damage at every seed, and the random one at half of them.
 */
#include "offload/tier_impl.h"
#include "tests/support/edge_device.h"
#include "tests/support/pkv_test.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "runtime/device/device.h"

#ifdef PKVT_SIMT_KERNELS /* the CUDA kernels themselves, a fiber a thread: fewer keys and seeds */
static const enum pkv_kv_type kv_type = PKV_KV_F16;
enum {
    DIM = 64,
    LONG = 300,
    LEAST_TILES = 1,
    STEP_ROWS = 32,
    SEEDS = 40,
    RANDOM_SEEDS = 10,
    LIFE_LONG = 70,
};
#else
static const enum pkv_kv_type kv_type = PKV_KV_F32;
enum {
    DIM = 32,
    LONG = 900,      /* the long pass: no layer is dense */
    LEAST_TILES = 3, /* loaded for a layer of a step */
    STEP_ROWS = 128,
    SEEDS = 200,
    RANDOM_SEEDS = 50,
    LIFE_LONG = 260, /* the long pass of one of several sequences */
};
#endif

enum {
    LAYERS = 2,
    HEADS = 2,
    KV_HEADS = 1,
    PARK = 16,  /* a short pass: then it is parked, and another sequence has its memory */
    SHORT = 64, /* the short passes: all layers are dense */
    STEPS = 3,
    TOKENS = SHORT + LONG + STEPS,
    LIVES = 4,  /* of a random run, that each edge may matter often enough */
    ROUNDS = 8, /* of parking */
};

static const struct {
    const char *name;
    enum pkv_stream_kind first; /* whose progress shows the damage */
    bool past;                  /* the long pass has blocks on the host before it */
} edges[PKVI_EDGE_COUNT] = {
    [PKVI_EDGE_APPEND_STORE] = {"append > store", PKV_STORE, true},
    [PKVI_EDGE_STORE_PUBLISH] = {"store > publish", PKV_LOAD, true},
    [PKVI_EDGE_STORE_BUFFER] = {"store > buffer", PKV_COMPUTE, false},
    [PKVI_EDGE_LOAD_ATTEND] = {"load > attend", PKV_COMPUTE, true},
    [PKVI_EDGE_ATTEND_LOAD] = {"attend > load", PKV_LOAD, true},
    [PKVI_EDGE_UNPARK_ATTEND] = {"unpark > attend", PKV_COMPUTE, true},
    [PKVI_EDGE_UNPARK_PARK] = {"unpark > park", PKV_STORE, true}, /* in a test of its own */
};

typedef float plane[LAYERS][TOKENS][HEADS * DIM];
/* What kernels reach: pinned as a whole for each device. */
static _Alignas(4096) struct {
    plane q, got, other;
    float k[LAYERS][TOKENS][KV_HEADS * DIM], v[LAYERS][TOKENS][KV_HEADS * DIM];
    struct pkv_row_span spans[4][TOKENS]; /* by its first token: nothing is overwritten */
    struct pkv_row_span crowd[3];
    plane want, plain;
} pinned;

struct run {
    struct pkv_device *device;
    struct pkv_stream *compute;
    struct pkv_event *done;
    struct pkvi_tier *tier;
    pkv_addr scratch;
    uint64_t scratch_bytes;
    uint32_t seq;
    uint32_t window; /* of layer 0; 0: it is global */
    uint32_t sequences;
    uint32_t other_tokens; /* of sequence 1 */
    bool narrow;           /* layer 0 has heads of DIM / 2 */
    const struct pkv_policy_ops *policy;
};

static uint32_t dim_of(const struct run *run, uint32_t layer)
{
    return run->narrow && layer == 0 ? DIM / 2 : DIM;
}

static void open_run(struct run *run, const struct pkv_device_config *device, bool host,
                     uint32_t dropped)
{
    static struct pkv_layer_info layers[LAYERS];
    struct pkvi_tier_sizes sizes;
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] =
            (struct pkv_layer_info){.kind = PKV_LAYER_GLOBAL, .heads = HEADS, .kv_heads = KV_HEADS};
        layers[l].head_dim = dim_of(run, l);
    }
    layers[0].kind = run->window > 0 ? PKV_LAYER_SLIDING : PKV_LAYER_GLOBAL;
    layers[0].window = run->window;
    struct pkvi_tier_config config = {.layer = layers,
                                      .layers = LAYERS,
                                      .sequences = run->sequences,
                                      .parked = host,
                                      .context_tokens = TOKENS,
                                      .step_rows = STEP_ROWS,
                                      .pass_rows = TOKENS,
                                      .kv_type = kv_type,
                                      .host = host,
                                      .budget_bytes = host ? 1 : 0,
                                      .recent = 32,
                                      .policy = run->policy,
                                      .threads = device->threads,
                                      .dropped_edges = dropped};
    if (host) {
        assert_int_equal(pkvi_tier_plan(&config, &sizes), PKV_ERR_RANGE);
        config.budget_bytes = sizes.least_bytes;
    }
    pkv_addr same;
    assert_ok(pkvt_edge_device_open(device, &run->device));
    assert_ok(pkvi_mem_pin(run->device, &pinned, sizeof pinned, &same));
    assert_ok(pkvi_stream_open(run->device, PKV_COMPUTE, NULL, &run->compute));
    assert_ok(pkvi_event_open(run->device, false, &run->done));
    assert_ok(pkvi_tier_open(run->device, &config, run->compute, &run->tier));
    run->scratch_bytes =
        pkvi_attend_scratch_bytes(STEP_ROWS, TOKENS, HEADS, KV_HEADS, DIM, device->threads);
    assert_ok(pkvi_mem_alloc(run->device, PKV_MEM_DEVICE, run->scratch_bytes, &run->scratch));
    assert_ok(pkvi_tier_seq_open(run->tier, 0));
}

static void close_run(struct run *run)
{
    assert_ok(pkvi_stream_sync(run->compute));
    pkvi_tier_seq_close(run->tier, 0);
    pkvi_tier_close(run->tier);
    pkvi_event_close(run->done);
    pkvi_stream_close(run->compute);
    pkvi_mem_free(run->device, PKV_MEM_DEVICE, run->scratch);
    pkvi_mem_unpin(run->device, &pinned);
    pkv_device_close(run->device);
}

/* Rows of some spans in one layer; row r has q and out `first` + r, k and v `values` + r. */
static void launch(struct run *run, const struct pkvi_tier_rows *at,
                   const struct pkv_row_span *row_spans, uint32_t span_count, uint32_t first,
                   uint32_t values, uint32_t rows, float out[TOKENS][HEADS * DIM])
{
    const uint32_t dim = dim_of(run, at->layer);
    struct pkvi_tier_rows args = *at;
    args.host_spans = row_spans;
    args.append = (struct pkv_args_append){.k = pkvi_addr(pinned.k[at->layer][values]),
                                           .v = pkvi_addr(pinned.v[at->layer][values]),
                                           .spans = pkvi_addr(row_spans),
                                           .kv_type = kv_type,
                                           .span_count = span_count,
                                           .rows = rows,
                                           .kv_heads = KV_HEADS,
                                           .head_dim = dim,
                                           .k_stride = KV_HEADS * DIM,
                                           .v_stride = KV_HEADS * DIM};
    args.attend =
        (struct pkv_args_attend){.q = pkvi_addr(pinned.q[at->layer][first]),
                                 .spans = pkvi_addr(row_spans),
                                 .out = {.cols = HEADS * dim, .f32 = pkvi_addr(out[first])},
                                 .scratch = run->scratch,
                                 .scratch_bytes = run->scratch_bytes,
                                 .kv_type = kv_type,
                                 .scale = 0.2f,
                                 .span_count = span_count,
                                 .rows = rows,
                                 .heads = HEADS,
                                 .kv_heads = KV_HEADS,
                                 .head_dim = dim,
                                 .window = at->layer == 0 ? run->window : 0,
                                 .q_stride = HEADS * DIM};
    assert_ok(pkvi_tier_attend(run->tier, &args));
}

static void unit(struct run *run, uint32_t layer, uint32_t tile, uint32_t first, uint32_t rows,
                 bool last, float out[TOKENS][HEADS * DIM])
{
    struct pkv_row_span *span = &pinned.spans[run->seq][first];
    const uint32_t values = run->seq > 0 ? TOKENS / 2 : 0; /* other ones for the others */
    const struct pkvi_tier_rows at = {.layer = layer, .row_tile = tile, .last_tile = last};
    if (layer == 0) { /* later ones may be written under a kernel that reads them */
        *span = (struct pkv_row_span){.view = run->seq, .rows = rows, .first_position = first};
    }
    launch(run, &at, span, 1, first, first + values, rows, out);
}

/* The host waits for the pass's last attention, not for stores behind it. */
static void pass(struct run *run, uint32_t first, uint32_t rows, plane out)
{
    const struct pkvi_tier_part part = {.seq = run->seq, .tokens = first, .rows = rows};
    assert_ok(pkvi_tier_begin(run->tier, &part, 1));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t at = 0; at < rows; at += STEP_ROWS) {
            const uint32_t left = rows - at, count = left < STEP_ROWS ? left : STEP_ROWS;
            unit(run, l, at / STEP_ROWS, first + at, count, count == left, out[l]);
        }
    }
    assert_ok(pkvi_event_record(run->done, run->compute));
    assert_ok(pkvi_tier_end(run->tier));
    assert_ok(pkvi_event_sync(run->done));
}

/* Another sequence fills the device memory of the first one meanwhile, with other values. */
static void park(struct run *run)
{
    assert_ok(pkvi_tier_seq_park(run->tier, 0));
    run->seq = 1;
    assert_ok(pkvi_tier_seq_open(run->tier, 1));
    pass(run, 0, STEP_ROWS, pinned.other);
    pkvi_tier_seq_close(run->tier, 1);
    run->seq = 0;
    assert_ok(pkvi_tier_seq_unpark(run->tier, 0));
}

/* A sequence: short passes with parkings between them (`past`), one to `tokens` tokens, steps. */
static void live(struct run *run, bool host, bool past, uint32_t tokens, plane out)
{
    /* Where nothing is streamed, passes of one row tile. */
    const uint32_t most = host ? tokens : STEP_ROWS;
    uint32_t at = 0;
    for (; past && at < SHORT; at += PARK) {
        if (at > 0) {
            park(run);
        }
        pass(run, at, PARK, out);
    }
    for (uint32_t rows; at < tokens; at += rows) {
        rows = tokens - at < most ? tokens - at : most;
        pass(run, at, rows, out);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        pass(run, tokens + i, 1, out);
    }
}

static void run_all(const struct pkv_device_config *device, bool host, bool past, uint32_t dropped,
                    plane out)
{
    struct run run = {.sequences = 1};
    struct pkv_kv_report report;
    memset(out, 0, sizeof pinned.want);
    open_run(&run, device, host, dropped);
    live(&run, host, past, SHORT + LONG, out);
    pkvi_tier_report(run.tier, &report);
    assert_true(!host || report.loaded_tiles >= LAYERS * STEPS * LEAST_TILES);
    close_run(&run);
}

static struct pkv_device_config device_config(enum pkv_schedule schedule,
                                              enum pkv_stream_kind first, uint64_t seed)
{
    struct pkv_device_config config = pkv_device_config_default();
    config.threads = 1;
    config.schedule = schedule;
    config.schedule_first = first;
    config.schedule_seed = seed;
    return config;
}

static bool is_right(enum pkv_schedule schedule, enum pkv_stream_kind first, uint64_t seed,
                     bool past, uint32_t dropped)
{
    const struct pkv_device_config config = device_config(schedule, first, seed);
    run_all(&config, true, past, dropped, pinned.got);
    return memcmp(pinned.got, pinned.want, sizeof pinned.want) == 0;
}

static void test_edges__all_kept__bits_of_device_in_every_schedule(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 8 : pkvt_edge_seeds(SEEDS)); seed++) {
        static const enum pkv_schedule schedules[] = {PKV_SCHEDULE_ADVERSARIAL, PKV_SCHEDULE_RANDOM,
                                                      PKV_SCHEDULE_LAZY, PKV_SCHEDULE_WORKERS};
        const enum pkv_stream_kind first = (enum pkv_stream_kind)(seed / 4 % 4);
        if (!is_right(schedules[seed % 4], first, seed, seed % 3 > 0, 0)) {
            fail_msg("schedule %d, seed %u: wrong", (int)schedules[seed % 4], (unsigned)seed);
        }
    }
}

static void test_edges__one_dropped__adversarial_shows_it_at_every_seed(void **state)
{
    (void)state;
    for (uint32_t edge = 0; edge < PKVI_EDGE_UNPARK_PARK; edge++) {
        const uint32_t seeds = PKVT_SANITIZED ? 3 : pkvt_edge_seeds(SEEDS / 5);
        uint32_t seen = 0;
        for (uint64_t seed = 0; seed < seeds; seed++) {
            const bool right = is_right(PKV_SCHEDULE_ADVERSARIAL, edges[edge].first, seed,
                                        edges[edge].past, 1u << edge);
            seen += !right;
            if (right && pkvt_edge_must_show()) {
                fail_msg("%s dropped: not seen at seed %u", edges[edge].name, (unsigned)seed);
            }
        }
        print_message("%s dropped: seen at %u of %u seeds\n", edges[edge].name, seen, seeds);
    }
}

static bool is_head(plane out, uint32_t tokens)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (memcmp(out[l], pinned.want[l], tokens * sizeof out[l][0]) != 0) {
            return false;
        }
    }
    return true;
}

/* Sequences one after the other: an edge that matters once in a life matters a few times. */
static bool is_right_in_lives(uint64_t seed, bool past, uint32_t dropped)
{
    const struct pkv_device_config config = device_config(PKV_SCHEDULE_RANDOM, PKV_COMPUTE, seed);
    struct run run = {.sequences = 1};
    bool right = true;
    open_run(&run, &config, true, dropped);
    for (uint32_t i = 0; i < LIVES; i++) {
        if (i > 0) {
            pkvi_tier_seq_close(run.tier, 0);
            assert_ok(pkvi_tier_seq_open(run.tier, 0));
        }
        memset(pinned.got, 0, sizeof pinned.got);
        live(&run, true, past, SHORT + LIFE_LONG, pinned.got);
        right = right && is_head(pinned.got, SHORT + LIFE_LONG + STEPS);
    }
    close_run(&run);
    return right;
}

static void assert_half(uint32_t edge, uint32_t seen)
{
    print_message("%s dropped: seen at %u of %u seeds\n", edges[edge].name, seen, RANDOM_SEEDS);
    assert_in_range(seen, RANDOM_SEEDS / 2, RANDOM_SEEDS);
}

static void test_edges__one_dropped__random_shows_it_at_half_the_seeds(void **state)
{
    (void)state;
    if (!pkvt_edge_must_show()) {
        skip();
    }
    for (uint64_t seed = 0; seed < RANDOM_SEEDS; seed++) {
        if (!is_right_in_lives(seed, seed % 3 > 0, 0)) {
            fail_msg("seed %u: wrong", (unsigned)seed);
        }
    }
    for (uint32_t edge = 0; edge < PKVI_EDGE_UNPARK_PARK; edge++) {
        uint32_t seen = 0;
        for (uint64_t seed = 0; seed < RANDOM_SEEDS; seed++) {
            seen += !is_right_in_lives(seed, edges[edge].past, 1u << edge);
        }
        assert_half(edge, seen);
    }
}

/* One sequence comes back while another takes its parking, again and again. */
static void run_parking(const struct pkv_device_config *device, bool park, uint32_t dropped,
                        plane out)
{
    struct run run = {.window = 64, .sequences = 2};
    memset(out, 0, sizeof pinned.want);
    open_run(&run, device, true, dropped);
    pass(&run, 0, SHORT, out);
    run.seq = 1;
    assert_ok(pkvi_tier_seq_open(run.tier, 1));
    pass(&run, 0, STEP_ROWS, pinned.other);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (park) {
            assert_ok(pkvi_tier_seq_park(run.tier, 0));
            assert_ok(pkvi_tier_seq_unpark(run.tier, 0));
            assert_ok(pkvi_tier_seq_park(run.tier, 1));
        }
        run.seq = 0;
        pass(&run, SHORT + 4 * i, 4, out);
        if (park) {
            assert_ok(pkvi_tier_seq_unpark(run.tier, 1));
        }
        run.seq = 1; /* its return is waited for here, not when it is parked next */
        pass(&run, STEP_ROWS + i, 1, pinned.other);
    }
    pkvi_tier_seq_close(run.tier, 1);
    close_run(&run);
}

static void test_edges__parking_taken_again__unpark_before_park(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 16 : pkvt_edge_seeds(SEEDS)); seed++) {
        /* Both wait for COMPUTE too: behind that the one that parks goes on first. */
        struct pkv_device_config config = device_config(PKV_SCHEDULE_ADVERSARIAL, PKV_STORE, seed);
        config.schedule_last = 1 + PKV_LOAD;
        run_parking(&config, false, 0, pinned.plain);
        run_parking(&config, true, 0, pinned.got);
        assert_memory_equal(pinned.got, pinned.plain, sizeof pinned.plain);
        run_parking(&config, true, 1u << PKVI_EDGE_UNPARK_PARK, pinned.got);
        if (memcmp(pinned.got, pinned.plain, sizeof pinned.plain) == 0 && pkvt_edge_must_show()) {
            fail_msg("unpark > park dropped: not seen at seed %u", (unsigned)seed);
        }
    }
}

/* A prompt and some steps: in passes of one row tile where nothing is streamed. */
static void run_narrow(const struct pkv_device_config *device, bool host, plane out)
{
    struct run run = {.sequences = 1, .narrow = true};
    memset(out, 0, sizeof(plane));
    open_run(&run, device, host, 0);
    for (uint32_t at = 0; at < LONG;) {
        const uint32_t rows = host ? LONG : LONG - at < STEP_ROWS ? LONG - at : STEP_ROWS;
        pass(&run, at, rows, out);
        at += rows;
    }
    pass(&run, LONG, 1, out);
    close_run(&run);
}

/* Blocks of a layer that is twice as wide as the one before lie where no others do that are still
 * being stored. */
static void test_edges__layers_of_two_widths__blocks_hold(void **state)
{
    (void)state;
    struct pkv_device_config config = device_config(PKV_SCHEDULE_WORKERS, PKV_COMPUTE, 0);
    run_narrow(&config, false, pinned.plain);
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 8 : pkvt_edge_seeds(SEEDS)); seed++) {
        config = device_config(PKV_SCHEDULE_ADVERSARIAL, PKV_COMPUTE, seed);
        run_narrow(&config, true, pinned.got);
        if (memcmp(pinned.got, pinned.plain, sizeof pinned.plain) != 0) {
            fail_msg("seed %u: a block was overwritten before it was stored", (unsigned)seed);
        }
    }
}

/* Turns HOT with a prompt, decodes until pages of the ring are used again, reads a second prompt:
 * all that was stored is seen, by attention, scores and slots. */
static void run_hot(const struct pkv_device_config *device, bool past, uint32_t dropped, plane out)
{
    enum { PROMPT = 500, STEPS_OF_ONE = 40, STEPS_OF_MANY = 8, SECOND = 40 };
    struct run run = {.sequences = 1, .policy = pkv_policy_find("h2o")};
    memset(out, 0, sizeof(plane));
    open_run(&run, device, true, dropped);
    if (past) {
        pass(&run, 0, SHORT, out);
    }
    pass(&run, past ? SHORT : 0, past ? PROMPT - SHORT : PROMPT, out);
    uint32_t at = PROMPT;
    for (; at < PROMPT + STEPS_OF_ONE; at++) {
        pass(&run, at, 1, out);
    }
    /* A page leaves two steps after it is full: its store is behind those of both. */
    for (uint32_t i = 0; i < STEPS_OF_MANY; i++, at += PKV_PAGE_TOKENS) {
        pass(&run, at, PKV_PAGE_TOKENS, out);
    }
    assert_true(run.tier->seq[0].hot);
    pass(&run, at, SECOND, out);
    pass(&run, at + SECOND, 1, out);
    close_run(&run);
}

static bool has_hot_sets(const struct pkv_device_config *config)
{
    struct pkv_device *device = NULL;
    assert_ok(pkvt_edge_device_open(config, &device));
    const bool has = pkvi_device_kernel(device, PKV_OP_SCORE) != NULL;
    pkv_device_close(device);
    return has;
}

static void test_edges__hot_set__each_dropped_one_is_seen(void **state)
{
    (void)state;
    static plane all[2];
    struct pkv_device_config config = device_config(PKV_SCHEDULE_WORKERS, PKV_COMPUTE, 0);
    if (!has_hot_sets(&config)) {
        skip();
    }
    for (uint32_t past = 0; past < 2; past++) {
        run_hot(&config, past, 0, pinned.got);
        memcpy(all[past], pinned.got, sizeof all[past]);
    }
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 2 : pkvt_edge_seeds(SEEDS / 10)); seed++) {
        static const enum pkv_schedule schedules[] = {PKV_SCHEDULE_ADVERSARIAL, PKV_SCHEDULE_RANDOM,
                                                      PKV_SCHEDULE_LAZY, PKV_SCHEDULE_WORKERS};
        const bool past = seed % 2;
        config = device_config(schedules[seed / 2 % 4], (enum pkv_stream_kind)(seed / 8 % 4), seed);
        run_hot(&config, past, 0, pinned.got);
        if (memcmp(pinned.got, all[past], sizeof all[past]) != 0) {
            fail_msg("schedule %d, seed %u: wrong", (int)schedules[seed / 2 % 4], (unsigned)seed);
        }
        for (uint32_t edge = 0; edge < PKVI_EDGE_UNPARK_ATTEND; edge++) {
            config = device_config(PKV_SCHEDULE_ADVERSARIAL, edges[edge].first, seed);
            run_hot(&config, edges[edge].past, 1u << edge, pinned.got);
            if (memcmp(pinned.got, all[edges[edge].past], sizeof all[0]) == 0 &&
                pkvt_edge_must_show()) {
                fail_msg("%s dropped: not seen at seed %u", edges[edge].name, (unsigned)seed);
            }
        }
    }
}

static void test_edges__parking_taken_again__random_shows_it_at_half_the_seeds(void **state)
{
    (void)state;
    if (!pkvt_edge_must_show()) {
        skip();
    }
    uint32_t seen = 0;
    for (uint64_t seed = 0; seed < RANDOM_SEEDS; seed++) {
        const struct pkv_device_config config =
            device_config(PKV_SCHEDULE_RANDOM, PKV_COMPUTE, seed);
        run_parking(&config, false, 0, pinned.plain);
        run_parking(&config, true, 0, pinned.got);
        assert_memory_equal(pinned.got, pinned.plain, sizeof pinned.plain);
        run_parking(&config, true, 1u << PKVI_EDGE_UNPARK_PARK, pinned.got);
        seen += memcmp(pinned.got, pinned.plain, sizeof pinned.plain) != 0;
    }
    assert_half(PKVI_EDGE_UNPARK_PARK, seen);
}

/* Three sequences go on in one pass, in more blocks than two row tiles have. */
static void crowded_pass(struct run *run, uint32_t tokens, uint32_t rows)
{
    struct pkvi_tier_part parts[3];
    for (uint32_t i = 0; i < 3; i++) {
        parts[i] = (struct pkvi_tier_part){.seq = i + 1, .tokens = tokens, .rows = rows};
        pinned.crowd[i] = (struct pkv_row_span){
            .view = i + 1, .first_row = i * rows, .rows = rows, .first_position = tokens};
    }
    assert_ok(pkvi_tier_begin(run->tier, parts, 3));
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct pkvi_tier_rows at = {.layer = l, .last_tile = true};
        launch(run, &at, pinned.crowd, 3, 0, TOKENS / 2, 3 * rows, pinned.other[l]);
    }
    assert_ok(pkvi_event_record(run->done, run->compute));
    assert_ok(pkvi_tier_end(run->tier));
    assert_ok(pkvi_event_sync(run->done));
}

/* The last layer's stores of a long pass still read the buffer when the next pass begins, whose
 * rows lie elsewhere in it. */
static void test_edges__many_sequences_after_a_long_pass__its_blocks_hold(void **state)
{
    (void)state;
    enum { BEFORE = 95, ROWS = 34 }; /* three blocks each, from the middle of one on */
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 8 : pkvt_edge_seeds(SEEDS)); seed++) {
        const struct pkv_device_config config =
            device_config(PKV_SCHEDULE_ADVERSARIAL, PKV_COMPUTE, seed);
        struct run run = {.sequences = 4};
        memset(pinned.got, 0, sizeof pinned.got);
        open_run(&run, &config, true, 0);
        for (run.seq = 1; run.seq < 4; run.seq++) {
            assert_ok(pkvi_tier_seq_open(run.tier, run.seq));
            pass(&run, 0, BEFORE, pinned.other);
        }
        assert_ok(pkvi_transfer_settle_stores(run.tier));
        run.seq = 0;
        pass(&run, 0, LONG, pinned.got);
        crowded_pass(&run, BEFORE, ROWS);
        pass(&run, LONG, 1, pinned.got);
        if (!is_head(pinned.got, LONG + 1)) {
            fail_msg("seed %u: a block was overwritten before it was stored", (unsigned)seed);
        }
        for (uint32_t s = 1; s < 4; s++) {
            pkvi_tier_seq_close(run.tier, s);
        }
        close_run(&run);
    }
}

/* A prompt, within whose second layer a step of another sequence begins: what the prompt has just
 * stored has not arrived because something else has. */
static void prompt_with_steps(struct run *run, plane out)
{
    const struct pkvi_tier_part part = {.seq = 0, .rows = LONG};
    pkvi_tier_select(run->tier, 1);
    assert_ok(pkvi_tier_begin(run->tier, &part, 1));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t at = 0; at < LONG; at += STEP_ROWS) {
            const uint32_t left = LONG - at, count = left < STEP_ROWS ? left : STEP_ROWS;
            run->seq = 0;
            pkvi_tier_select(run->tier, 1);
            unit(run, l, at / STEP_ROWS, at, count, count == left, out[l]);
            if (count == left || at == 0) {
                run->seq = 1;
                pkvi_tier_select(run->tier, 0);
                /* The step that begins now sees that the stores before the last step have passed */
                assert_ok(pkvi_event_sync(run->tier->stored));
                pass(run, run->other_tokens++, 1, pinned.other);
            }
        }
    }
    run->seq = 0;
    pkvi_tier_select(run->tier, 1);
    assert_ok(pkvi_event_record(run->done, run->compute));
    assert_ok(pkvi_tier_end(run->tier));
    assert_ok(pkvi_event_sync(run->done));
    pkvi_tier_select(run->tier, 0);
}

static void test_edges__steps_within_a_prompt__its_stores_are_waited_for(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (PKVT_SANITIZED ? 8 : pkvt_edge_seeds(SEEDS)); seed++) {
        const struct pkv_device_config config =
            device_config(PKV_SCHEDULE_ADVERSARIAL, seed % 2 ? PKV_LOAD : PKV_COMPUTE, seed);
        struct run run = {.sequences = 2};
        memset(pinned.got, 0, sizeof pinned.got);
        open_run(&run, &config, true, 0);
        assert_ok(pkvi_tier_seq_open(run.tier, 1));
        prompt_with_steps(&run, pinned.got);
        pass(&run, LONG, 1, pinned.got);
        if (!is_head(pinned.got, LONG + 1)) {
            fail_msg("seed %u: a block was read before it was stored", (unsigned)seed);
        }
        pkvi_tier_seq_close(run.tier, 1);
        close_run(&run);
    }
}

static int fill(void **state)
{
    (void)state;
    struct pkvt_rng rng = {.state = 5};
    for (uint32_t i = 0; i < LAYERS * TOKENS * HEADS * DIM; i++) {
        ((float *)pinned.q)[i] = pkvt_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < LAYERS * TOKENS * KV_HEADS * DIM; i++) {
        ((float *)pinned.k)[i] = pkvt_rng_normal(&rng);
        ((float *)pinned.v)[i] = pkvt_rng_normal(&rng);
    }
    const struct pkv_device_config config = device_config(PKV_SCHEDULE_WORKERS, PKV_COMPUTE, 0);
    run_all(&config, false, false, 0, pinned.want);
    return 0;
}

int main(void)
{
    const struct CMUnitTest few[] = {
        cmocka_unit_test(test_edges__all_kept__bits_of_device_in_every_schedule),
        cmocka_unit_test(test_edges__one_dropped__adversarial_shows_it_at_every_seed),
        cmocka_unit_test(test_edges__parking_taken_again__unpark_before_park),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges__all_kept__bits_of_device_in_every_schedule),
        cmocka_unit_test(test_edges__one_dropped__adversarial_shows_it_at_every_seed),
        cmocka_unit_test(test_edges__parking_taken_again__unpark_before_park),
        cmocka_unit_test(test_edges__one_dropped__random_shows_it_at_half_the_seeds),
        cmocka_unit_test(test_edges__parking_taken_again__random_shows_it_at_half_the_seeds),
        cmocka_unit_test(test_edges__many_sequences_after_a_long_pass__its_blocks_hold),
        cmocka_unit_test(test_edges__layers_of_two_widths__blocks_hold),
        cmocka_unit_test(test_edges__hot_set__each_dropped_one_is_seen),
        cmocka_unit_test(test_edges__steps_within_a_prompt__its_stores_are_waited_for),
    };
    return STEP_ROWS < 128 ? cmocka_run_group_tests(few, fill, NULL)
                           : cmocka_run_group_tests(tests, fill, NULL);
}
