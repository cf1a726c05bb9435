/*
 * Policies that prune, in the tier alone. Method: random settings, shapes and lengths; a prompt,
 * then steps of some sequences in batches, with random q, k and v in every layer, beside a naive
 * model in double that knows every entry a layer has ever had and every row's attention to it.
 * Checked: lengths are those of the schedule; rows attend to what the layer has; what stays is at
 * least as good as what goes; sinks stay; entries are where the views say; pages are what those
 * take, and none is lost. PKVT_SEED=n runs one case.
 */
#include "offload/tier_impl.h"
#include "tests/support/pkv_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/addr.h"
#include "kernels/half.h"

enum {
    LAYERS = 4,
    CONTEXT = 420,
    COLS = 64,
    KV_COLS = 32,
    SEQUENCES = 3,
    SEEDS = 60,
};
#define OUT_TOLERANCE 2e-5
#define SCORE_TOLERANCE 2e-4 /* of a mean of probabilities */

/* A layer of a sequence as the model has it: entry e is the e-th that came. */
struct known {
    uint32_t entries; /* that ever came */
    bool there[CONTEXT];
    float k[CONTEXT][KV_COLS], v[CONTEXT][KV_COLS];
    /* Of steps: mean over all heads of the row's attention to entry e. */
    double p[CONTEXT][CONTEXT];
    struct pkvi_prune_state state;
};

static struct {
    struct pkv_layer_info layer[LAYERS];
    struct pkv_prune prune;
    struct pkv_policy_ops policy;
    struct pkvi_tier_config config;
    struct pkv_device *device;
    struct pkv_stream *compute;
    struct pkvi_tier *tier;
    void *scratch;
    uint64_t scratch_bytes, seed;
    struct pkvt_rng rng;
    bool open[SEQUENCES];
    uint32_t tokens[SEQUENCES], prompt[SEQUENCES], recent[SEQUENCES][CONTEXT + 1];
    struct known known[SEQUENCES][LAYERS];
    float q[CONTEXT * COLS], k[CONTEXT * KV_COLS], v[CONTEXT * KV_COLS], out[CONTEXT * COLS];
} it;

static struct {
    uint32_t pruned, zones, movers_met, steps;
} seen;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "seed %llu: ", (unsigned long long)it.seed);                           \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static uint32_t below(uint32_t limit)
{
    return pkvt_rng_below(&it.rng, limit);
}

static double tenths(uint32_t most)
{
    return below(most + 1) / 10.0;
}

static void random_settings(void)
{
    static const uint32_t heads[][3] = {{4, 2, 16}, {2, 1, 32}, {6, 3, 10}, {4, 4, 8}};
    it.prune = (struct pkv_prune){
        .shape = below(2) ? PKV_PRUNE_COSINE : PKV_PRUNE_DECAY,
        .interval = 1 + below(2),
        .least = below(60),
        .sinks = below(6),
        .recent_ratio = tenths(6),
        .ratio = 0.6 + tenths(4),
        .decay = 0.3 + tenths(7),
        .ramp = 1.0f + (float)tenths(10),
        .zone = 1 + below(below(2) ? 20 : 70),
        .zone_ratio = tenths(10),
        .zone_decay = tenths(10),
    };
    it.policy = (struct pkv_policy_ops){
        .abi = PKV_POLICY_ABI, .name = "test", .source = "test", .prune = &it.prune};
    it.config = (struct pkvi_tier_config){
        .layer = it.layer,
        .layers = 1 + below(LAYERS),
        .context_tokens = 40 + below(CONTEXT - 40 + 1),
        .sequences = 1 + below(SEQUENCES),
        .step_rows = 16 + below(100),
        .kv_type = below(2) ? PKV_KV_F16 : PKV_KV_F32,
        .policy = &it.policy,
        .threads = 1 + below(2),
    };
    it.config.pass_rows = it.config.context_tokens;
    for (uint32_t l = 0; l < LAYERS; l++) {
        const uint32_t *h = heads[below(4)];
        it.layer[l] = (struct pkv_layer_info){
            .kind = PKV_LAYER_GLOBAL, .heads = h[0], .kv_heads = h[1], .head_dim = h[2]};
    }
}

static void open_case(uint64_t seed)
{
    static const enum pkv_schedule schedules[] = {PKV_SCHEDULE_WORKERS, PKV_SCHEDULE_RANDOM,
                                                  PKV_SCHEDULE_LAZY, PKV_SCHEDULE_ADVERSARIAL};
    struct pkv_device_config device = pkv_device_config_default();
    it.seed = seed;
    it.rng.state = seed * 104729 + 3;
    random_settings();
    device.threads = it.config.threads;
    device.schedule = schedules[below(4)];
    device.schedule_seed = seed;
    it.tier = NULL;
    it.scratch_bytes = 64;
    assert_ok(pkv_device_open("cpu", &device, &it.device));
    assert_ok(pkvi_stream_open(it.device, PKV_COMPUTE, NULL, &it.compute));
    assert_ok(pkvi_tier_open(it.device, &it.config, it.compute, &it.tier));
    for (uint32_t l = 0; l < it.config.layers; l++) {
        const struct pkv_layer_info *info = &it.layer[l];
        const uint64_t bytes =
            pkvi_attend_scratch_bytes(it.config.step_rows, it.config.context_tokens, info->heads,
                                      info->kv_heads, info->head_dim, device.threads);
        it.scratch_bytes = bytes > it.scratch_bytes ? bytes : it.scratch_bytes;
    }
    it.scratch = aligned_alloc(64, (it.scratch_bytes + 63) / 64 * 64);
    assert_non_null(it.scratch);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        it.open[s] = false;
    }
}

static float kept(float x)
{
    return it.config.kv_type == PKV_KV_F16 ? pkvi_f16_to_f32(pkvi_f32_to_f16(x)) : x;
}

/* Enqueue the rows of a row tile of a layer, random ones; wait. */
static void attend(const struct pkv_row_span *spans, uint32_t count, uint32_t rows, uint32_t l,
                   uint32_t tile, bool last)
{
    const struct pkv_layer_info *info = &it.layer[l];
    const uint32_t cols = info->heads * info->head_dim, kv = info->kv_heads * info->head_dim;
    for (uint32_t i = 0; i < rows * cols; i++) {
        it.q[i] = pkvt_rng_uniform(&it.rng, -2.0f, 2.0f);
    }
    for (uint32_t i = 0; i < rows * kv; i++) {
        it.k[i] = pkvt_rng_uniform(&it.rng, -2.0f, 2.0f);
        it.v[i] = pkvt_rng_uniform(&it.rng, -1.0f, 1.0f);
    }
    struct pkvi_tier_rows args = {
        .layer = l, .row_tile = tile, .last_tile = last, .host_spans = spans};
    args.append = (struct pkv_args_append){.k = pkvi_addr(it.k),
                                           .v = pkvi_addr(it.v),
                                           .spans = pkvi_addr(spans),
                                           .kv_type = it.config.kv_type,
                                           .span_count = count,
                                           .rows = rows,
                                           .kv_heads = info->kv_heads,
                                           .head_dim = info->head_dim,
                                           .k_stride = kv,
                                           .v_stride = kv};
    args.attend = (struct pkv_args_attend){.q = pkvi_addr(it.q),
                                           .spans = pkvi_addr(spans),
                                           .out = {.cols = cols, .f32 = pkvi_addr(it.out)},
                                           .scratch = pkvi_addr(it.scratch),
                                           .scratch_bytes = it.scratch_bytes,
                                           .kv_type = it.config.kv_type,
                                           .scale = 0.3f,
                                           .span_count = count,
                                           .rows = rows,
                                           .heads = info->heads,
                                           .kv_heads = info->kv_heads,
                                           .head_dim = info->head_dim,
                                           .q_stride = cols};
    assert_ok(pkvi_tier_attend(it.tier, &args));
    assert_ok(pkvi_stream_sync(it.compute));
}

/* The layer's rows `first` on of the launch become entries of the model. */
static void come(struct known *known, uint32_t l, uint32_t first, uint32_t rows)
{
    const uint32_t kv = it.layer[l].kv_heads * it.layer[l].head_dim;
    for (uint32_t r = first; r < first + rows; r++) {
        for (uint32_t c = 0; c < kv; c++) {
            known->k[known->entries][c] = kept(it.k[r * kv + c]);
            known->v[known->entries][c] = kept(it.v[r * kv + c]);
        }
        known->there[known->entries++] = true;
    }
}

/* A row of the launch over the entries [0, end) that are there: its output; what it attended to. */
static void check_row(const struct known *known, uint32_t l, uint32_t row, uint32_t end,
                      double *p_out)
{
    const struct pkv_layer_info *info = &it.layer[l];
    const uint32_t dim = info->head_dim, group = info->heads / info->kv_heads;
    double p[CONTEXT];
    memset(p_out, 0, end * sizeof *p_out);
    for (uint32_t h = 0; h < info->heads; h++) {
        const float *q = it.q + ((size_t)row * info->heads + h) * dim;
        const float *out = it.out + ((size_t)row * info->heads + h) * dim;
        double sum = 0, want[32] = {0};
        for (uint32_t e = 0; e < end; e++) {
            double score = 0;
            for (uint32_t c = 0; c < dim; c++) {
                score += (double)q[c] * (double)known->k[e][h / group * dim + c];
            }
            p[e] = known->there[e] ? exp(score * (double)0.3f) : 0;
            sum += p[e];
        }
        for (uint32_t e = 0; e < end; e++) {
            p_out[e] += p[e] / sum / info->heads;
            for (uint32_t c = 0; c < dim; c++) {
                want[c] += p[e] / sum * (double)known->v[e][h / group * dim + c];
            }
        }
        for (uint32_t c = 0; c < dim; c++) {
            CHECK(fabs((double)out[c] - want[c]) <= OUT_TOLERANCE,
                  "layer %u, row of %u entries, head %u: %.9g, want %.9g", l, end, h,
                  (double)out[c], want[c]);
        }
    }
}

/* Of entries [first, end), those in `stay` count at least as much as the others. */
static void check_choice(const double *score, uint32_t first, uint32_t end, const bool *stay,
                         uint32_t rows)
{
    double least = INFINITY, most = -INFINITY;
    for (uint32_t e = first; e < end; e++) {
        const double mean = score[e] / rows;
        least = stay[e] && mean < least ? mean : least;
        most = !stay[e] && mean > most ? mean : most;
    }
    CHECK(!(least < most - SCORE_TOLERANCE * most), "%.9g stays, %.9g goes", least, most);
}

static double ramp(uint32_t i, uint32_t window)
{
    return window > 1 ? 1 + ((double)it.prune.ramp - 1) * i / (window - 1) : 1;
}

/* ---- a prompt ---- */

/* Who goes on behind the layer. */
static void check_index(const double *score, uint32_t rows, uint32_t next, uint32_t window)
{
    const uint32_t sinks = it.prune.sinks;
    const int32_t *index = PKV_AT(const int32_t, pkvi_tier_prompt_index(it.tier));
    bool stay[CONTEXT] = {false};
    for (uint32_t i = 0; i < next; i++) {
        CHECK(index[i] >= 0 && (uint32_t)index[i] < rows && (i == 0 || index[i] > index[i - 1]),
              "row %u of those that go on: %d", i, index[i]);
        stay[index[i]] = true;
    }
    for (uint32_t r = 0; r < rows; r++) {
        const bool must = r >= rows - window || (r < sinks && r < next - window);
        CHECK(stay[r] || !must, "row %u of %u is gone", r, rows);
    }
    check_choice(score, sinks < rows - window ? sinks : rows - window, rows - window, stay, window);
}

static void prompt_layer(uint32_t s, uint32_t l, uint32_t rows, uint32_t next)
{
    static double score[CONTEXT], p[CONTEXT];
    struct known *known = &it.known[s][l];
    const uint32_t most = it.config.step_rows;
    const uint32_t window = it.recent[s][0] + 1;
    known->entries = 0;
    known->state = (struct pkvi_prune_state){.entries = rows, .base = rows};
    memset(score, 0, sizeof score);
    for (uint32_t first = 0; first < rows; first += most) {
        const uint32_t count = rows - first < most ? rows - first : most;
        const struct pkv_row_span span = {.view = s, .rows = count, .first_position = first};
        attend(&span, 1, count, l, first / most, first + count == rows);
        come(known, l, 0, count);
        for (uint32_t r = 0; r < count; r++) {
            check_row(known, l, r, first + r + 1, p);
            for (uint32_t e = 0; first + r + window >= rows && e <= first + r; e++) {
                score[e] += ramp(first + r + window - rows, window) * p[e];
            }
        }
    }
    if (next < rows) {
        check_index(score, rows, next, window);
        seen.pruned++;
    }
}

static void prompt(uint32_t s, uint32_t tokens)
{
    const struct pkvi_tier_part part = {.seq = s, .rows = tokens, .exact = true};
    uint32_t rows[LAYERS + 1];
    pkvi_tier_prompt_rows(&it.config, tokens, rows);
    rows[it.config.layers] = rows[it.config.layers - 1];
    pkvi_prune_recents(&it.prune, it.config.layers, tokens, it.config.context_tokens - tokens,
                       it.recent[s]);
    const uint32_t lane = below(2);
    pkvi_tier_select(it.tier, lane);
    assert_ok(pkvi_tier_begin(it.tier, &part, 1));
    const uint32_t leave_at = below(6) == 0 ? below(it.config.layers) : UINT32_MAX;
    for (uint32_t l = 0; l < it.config.layers; l++) {
        if (l == leave_at) {
            assert_ok(pkvi_stream_sync(it.compute));
            assert_ok(pkvi_tier_abort(it.tier));
            pkvi_tier_select(it.tier, 0);
            it.tokens[s] = 0;
            return;
        }
        prompt_layer(s, l, rows[l], rows[l + 1]);
    }
    assert_ok(pkvi_tier_end(it.tier));
    pkvi_tier_select(it.tier, 0);
    it.tokens[s] = it.prompt[s] = tokens;
}

/* ---- steps ---- */

static bool same_entry(const struct known *known, uint32_t l, uint32_t e, const uint8_t *entry,
                       uint32_t head)
{
    const uint32_t dim = it.layer[l].head_dim;
    for (uint32_t c = 0; c < dim; c++) {
        float k;
        if (it.config.kv_type == PKV_KV_F16) {
            uint16_t half;
            memcpy(&half, entry + c * sizeof half, sizeof half);
            k = pkvi_f16_to_f32(half);
        } else {
            memcpy(&k, entry + c * sizeof k, sizeof k);
        }
        if (k != known->k[e][head * dim + c]) {
            return false;
        }
    }
    return true;
}

/* Which entries the device has of a KV head; by their keys' values. */
static void read_entries(uint32_t s, uint32_t l, uint32_t head, bool *there_out)
{
    const struct known *known = &it.known[s][l];
    const struct pkvi_prune_layer *layer = &it.tier->prune_seq[s].layer[l];
    const uint32_t bytes = pkvi_kv_entry_bytes(it.config.kv_type, it.layer[l].head_dim);
    memset(there_out, 0, CONTEXT * sizeof *there_out);
    for (uint32_t key = layer->first_key; key < known->entries; key++) {
        const pkv_addr page =
            pkvi_tier_row(it.tier, s, key / PKV_PAGE_TOKENS)[it.tier->layer[l].head_base + head];
        const uint8_t *entry = PKV_AT(const uint8_t, page) + key % PKV_PAGE_TOKENS * bytes;
        uint32_t e = 0;
        while (e < known->entries && !same_entry(known, l, e, entry, head)) {
            e++;
        }
        CHECK(e < known->entries && !there_out[e], "layer %u, key %u holds entry %u of %u", l, key,
              e, known->entries);
        seen.movers_met += e != key;
        there_out[e] = true;
    }
}

/* A zone was thinned out behind the step: which of it stayed. */
static void check_zone(uint32_t s, uint32_t l, uint32_t step, uint32_t stays)
{
    static double score[CONTEXT];
    bool there[CONTEXT], other[CONTEXT];
    struct known *known = &it.known[s][l];
    const uint32_t recent = it.recent[s][step], zone = it.prune.zone;
    const uint32_t end = known->entries - (recent + 1), first = end - zone;
    uint32_t left = 0;
    read_entries(s, l, 0, there);
    for (uint32_t h = 1; h < it.layer[l].kv_heads; h++) {
        read_entries(s, l, h, other);
        CHECK(memcmp(there, other, sizeof there) == 0, "KV heads have other entries");
    }
    memset(score, 0, sizeof score);
    for (uint32_t i = 0; i <= recent; i++) {
        for (uint32_t e = first; e < end; e++) {
            score[e] += ramp(i, recent + 1) * known->p[step - recent + i][e];
        }
    }
    for (uint32_t e = 0; e < known->entries; e++) {
        const bool in_zone = e >= first && e < end;
        CHECK(in_zone ? known->there[e] : there[e] == known->there[e],
              "layer %u, step %u: entry %u outside of [%u, %u)", l, step, e, first, end);
        left += in_zone && there[e];
    }
    CHECK(left == stays, "layer %u, step %u: %u of a zone stay, want %u", l, step, left, stays);
    check_choice(score, first, end, there, recent + 1);
    memcpy(known->there, there, sizeof there);
    seen.zones++;
}

/* Entries, and pages from the first that is there. */
static void check_length(uint32_t s, uint32_t l)
{
    const struct known *known = &it.known[s][l];
    const struct pkvi_prune_layer *layer = &it.tier->prune_seq[s].layer[l];
    CHECK(known->entries - layer->first_key == known->state.entries,
          "layer %u: %u entries, want %u", l, known->entries - layer->first_key,
          known->state.entries);
    for (uint32_t b = 0; b < it.tier->blocks_max; b++) {
        const bool wanted =
            b >= layer->first_key / PKV_PAGE_TOKENS && b < pkvi_pages_of(known->entries);
        const pkv_addr *row = pkvi_tier_row(it.tier, s, b) + it.tier->layer[l].head_base;
        for (uint32_t h = 0; h < it.layer[l].kv_heads; h++) {
            CHECK((row[h] != 0) == wanted, "layer %u: page %u of keys from %u on", l, b,
                  layer->first_key);
        }
    }
}

static void step_layer(uint32_t l, const struct pkv_row_span *spans, uint32_t count)
{
    attend(spans, count, count, l, 0, true);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t s = spans[i].view, step = it.tokens[s] + 1 - it.prompt[s];
        const uint32_t stays = pkvi_prune_zone_stays(&it.prune, it.config.layers, l);
        struct known *known = &it.known[s][l];
        come(known, l, i, 1);
        check_row(known, l, i, known->entries, known->p[step]);
        if (pkvi_prune_step(&it.prune, it.recent[s][step], stays, &known->state)) {
            check_zone(s, l, step, stays);
        }
        check_length(s, l);
    }
}

static void step(void)
{
    struct pkvi_tier_part part[SEQUENCES];
    struct pkv_row_span spans[SEQUENCES];
    uint32_t count = 0;
    for (uint32_t s = 0; s < it.config.sequences; s++) {
        if (it.open[s] && it.tokens[s] > 0 && it.tokens[s] < it.config.context_tokens &&
            below(5) > 0) {
            part[count] = (struct pkvi_tier_part){.seq = s, .tokens = it.tokens[s], .rows = 1};
            spans[count] = (struct pkv_row_span){
                .view = s, .first_row = count, .rows = 1, .first_position = it.tokens[s]};
            count++;
        }
    }
    if (count == 0) {
        return;
    }
    assert_ok(pkvi_tier_begin(it.tier, part, count));
    for (uint32_t l = 0; l < it.config.layers; l++) {
        step_layer(l, spans, count);
    }
    assert_ok(pkvi_tier_end(it.tier));
    assert_ok(pkvi_stream_sync(it.compute));
    for (uint32_t i = 0; i < count; i++) {
        it.tokens[part[i].seq]++;
    }
    seen.steps++;
}

static void random_operation(void)
{
    const uint32_t s = below(it.config.sequences), context = it.config.context_tokens;
    if (it.open[s] && below(12) == 0) {
        pkvi_tier_seq_close(it.tier, s);
        it.open[s] = false;
    } else if (!it.open[s]) {
        assert_ok(pkvi_tier_seq_open(it.tier, s));
        it.open[s] = true;
        it.tokens[s] = 0;
    } else if (it.tokens[s] == 0) {
        const uint32_t most = below(3) == 0 ? context : context / 2;
        const uint32_t tokens = 1 + below(below(4) == 0 ? 3 : most);
        if (pkvi_tier_check_prompt(it.tier, tokens) == PKV_OK) {
            prompt(s, tokens);
        }
    }
    for (uint32_t i = below(80); i > 0; i--) {
        step();
    }
}

static void run_case(uint64_t seed)
{
    open_case(seed);
    for (uint32_t i = 0; i < 12; i++) {
        random_operation();
    }
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (it.open[s]) {
            pkvi_tier_seq_close(it.tier, s);
        }
    }
    assert_int_equal(it.tier->pages.free_count, it.tier->pages.count);
    assert_ok(pkvi_stream_sync(it.compute));
    pkvi_tier_close(it.tier);
    pkvi_stream_close(it.compute);
    pkv_device_close(it.device);
    free(it.scratch);
}

static void test_prune__random_sequences__are_what_the_settings_say(void **state)
{
    (void)state;
    const char *only = getenv("PKVT_SEED");
    const uint64_t first = only ? strtoull(only, NULL, 10) : 0;
    const uint64_t end = only ? first + 1 : PKVT_SANITIZED ? SEEDS / 6 : SEEDS;
    for (uint64_t seed = first; seed < end; seed++) {
        run_case(seed);
    }
    printf("%u layers pruned, %u zones, %u entries elsewhere, %u steps\n", seen.pruned, seen.zones,
           seen.movers_met, seen.steps);
    const uint32_t least = (uint32_t)(end - first) * 5 / 6;
    assert_true(only || (seen.pruned > least && seen.zones > 100 && seen.movers_met > 100));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune__random_sequences__are_what_the_settings_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
