/*
 * kernels.h: every operation a device runs, one argument struct each.
 *
 * Shapes are row-major, slowest axis first. All addresses are device memory unless said otherwise.
 * A *row* is one token of one sequence in the running step. Results of a row depend neither on how
 * many rows travel with it, nor on the number of threads (canonical order, per CPU variant):
 *   linear     each output sums its input blocks of 32 in ascending order (CUDA: in one fixed order
 *              up to 8 rows; more rows go through f16 and cuBLAS and may differ from these);
 *   attention  a score sums over the head's channels in ascending order; keys are handled in splits
 *              of PKV_SPLIT_KEYS at absolute positions, a split's values sum in ascending order,
 * and splits merge in ascending order by log-sum-exp.
 *
 * CUDA attends in an order of its own, which depends as little on the rows beside one, on how a
 * prompt is cut, on scratch, or on the device's size. Over f16, bf16 and q8_0 with heads of 64, 128
 * and 256 channels its tensor cores multiply what is rounded to f16 (q * scale; K and V; the
 * weights exp(score - largest)), sum in float32, and take a split page by page with an online
 * softmax; everything else is float32 throughout. SCORE takes the same scores and sums row heads in
 * an order that neither the grid nor a cut of the keys changes.
 */
#ifndef PKV_KERNELS_H
#define PKV_KERNELS_H

#include "pivotkv/impl/device_ops.h"
#include "pivotkv/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_SPLIT_KEYS 256u
#define PKV_ACT_BLOCK 32u /* input channels that share an activation scale */
#define PKV_LINEAR_PARTS 4u

enum pkv_op {
    PKV_OP_EMBED,
    PKV_OP_NORM,
    PKV_OP_QUANTIZE,
    PKV_OP_LINEAR,
    PKV_OP_GLU,
    PKV_OP_ROPE_TABLE,
    PKV_OP_ROPE,
    PKV_OP_APPEND,
    PKV_OP_ATTEND,
    PKV_OP_SOFTCAP,
    PKV_OP_TOPK,
    PKV_OP_SCORE,
    PKV_OP_PLACE,
    PKV_OP_COMPETE,
    PKV_OP_KEEP,
    PKV_OP_GATHER,
    PKV_OP_THIN,
    PKV_OP_INDEX,
    PKV_OP_PREDICT,
    PKV_OP_RECALL,
    PKV_OP_COUNT
};

/* "embed", "norm", ...; NULL for an unknown number. */
const char *pkvi_op_name(uint32_t op);

/* Number format of a weight matrix in device memory (layouts: kernels/pack.h). */
enum pkv_weight_type {
    PKV_W_F32,
    PKV_W_F16,
    PKV_W_BF16,
    PKV_W_Q4_0,
    PKV_W_Q4_1,
    PKV_W_Q5_0,
    PKV_W_Q5_1,
    PKV_W_Q8_0,
    PKV_W_Q2_K,
    PKV_W_Q3_K,
    PKV_W_Q4_K,
    PKV_W_Q5_K,
    PKV_W_Q6_K,
    PKV_W_COUNT
};

/* A packed weight matrix: y[o] = sum over i of w[o][i] * x[i]. */
struct pkv_matrix {
    enum pkv_weight_type type;
    uint32_t rows; /* outputs */
    uint32_t cols; /* inputs, the summed axis */
    pkv_addr data; /* as pkvi_pack_rows() lays it out */
    pkv_addr bias; /* f32 [rows], 0 = none */
};

/*
 * What 32 neighbouring 8-bit activations share. The largest of them may need more than 8 bits: the
 * rest of it is its *spill*, so that x ~ (q8 + spill of channel) * scale and the second largest
 * decides the scale (docs/adr/0005).
 */
struct pkv_act_block {
    float scale;
    int16_t sum[2];   /* of 16 q8 each, and of the spill */
    int16_t spill;    /* added to q8[channel], at most PKV_ACT_SPILL_MAX either way */
    uint16_t channel; /* < 32 */
};
#define PKV_ACT_SPILL_MAX 30000

/*
 * Activations of some rows. Producers write what is not 0. Quantised weights read q8 and block,
 * float weights read f32.
 */
struct pkv_act {
    uint32_t cols;
    pkv_addr f32;   /* f32 [rows][cols] */
    pkv_addr q8;    /* i8  [rows][cols], cols a multiple of 32, |q8| <= 127 */
    pkv_addr block; /* struct pkv_act_block [rows][cols / 32] */
};

/* x[row] = scale * table[ids[row]] */
struct pkv_args_embed {
    struct pkv_matrix table; /* [vocab][width] */
    pkv_addr ids;            /* i32 [rows]; the caller has checked 0 <= id < vocab */
    pkv_addr x;              /* f32 [rows][width] */
    float scale;
    uint32_t rows;
};

/*
 * RMS norm: y = x / sqrt(mean(x^2) + eps) * weight, of x + shift where shift != 0. Either `out`
 * receives y, or, with residual != 0, residual[row] += y (post norms). With row_index != 0 output
 * row r reads x row row_index[r].
 */
struct pkv_args_norm {
    pkv_addr x;         /* f32 [.][cols] */
    pkv_addr shift;     /* f32 [cols] or 0 */
    pkv_addr row_index; /* i32 [rows] or 0 */
    pkv_addr weight;    /* f32 [cols] */
    pkv_addr residual;  /* f32 [rows][cols] or 0 */
    struct pkv_act out;
    float eps;
    uint32_t rows, cols;
};

/* out = x, rounded to 8 bits (and copied where out.f32 is set and differs from x). */
struct pkv_args_quantize {
    pkv_addr x; /* f32 [rows][cols] */
    struct pkv_act out;
    uint32_t rows, cols;
};

struct pkv_linear_part {
    struct pkv_matrix w;
    pkv_addr y;        /* f32 [rows][y_stride] */
    uint32_t y_stride; /* floats from one row to the next */
    uint32_t add;      /* 1: y += w x (the residual), 0: y = w x */
};

/* Several matrices on the same input. */
struct pkv_args_linear {
    struct pkv_act x;
    uint32_t rows, part_count;
    struct pkv_linear_part part[PKV_LINEAR_PARTS];
};

enum pkv_glu { PKV_GLU_SILU, PKV_GLU_GELU /* tanh form */ };

/* out = activation(gate) * up */
struct pkv_args_glu {
    pkv_addr gate, up; /* f32 [rows][cols] */
    struct pkv_act out;
    enum pkv_glu kind;
    uint32_t rows, cols;
};

/* table[row][i] = { gain * cos, gain * sin }(position[row] * freq[i]); angles are taken in double.
 */
struct pkv_args_rope_table {
    pkv_addr positions; /* i32 [rows] */
    pkv_addr freq;      /* f64 [pairs], radians a position */
    pkv_addr table;     /* f32 [rows][pairs][2] */
    double gain;
    uint32_t rows, pairs;
};

/*
 * Rotate q and k in place, after RMS norm over each head where q_norm, k_norm are set.
 * halves 0: pairs (2i, 2i+1); 1: pairs (i, i + pairs). Channels beyond 2 * pairs stay.
 */
struct pkv_args_rope {
    pkv_addr q;              /* f32 [rows][q_stride], heads * head_dim used */
    pkv_addr k;              /* f32 [rows][k_stride], kv_heads * head_dim used */
    pkv_addr table;          /* f32 [rows][pairs][2] */
    pkv_addr q_norm, k_norm; /* f32 [head_dim] or 0 */
    pkv_addr q_gain;         /* f32 [rows][heads]: 1 / rms of q; written with q_norm, or 0 */
    float eps;
    uint32_t rows, heads, kv_heads, head_dim, pairs, halves, q_stride, k_stride;
};

/*
 * K and V of one sequence in one layer. Token t of KV head h is slot t % 32 of page t / 32. A page
 * holds 32 entries, an entry pkvi_kv_entry_bytes(): K then V, each head_dim values (q8_0: head_dim
 * i8, then head_dim / 32 f16 scales).
 */
struct pkv_kv_view {
    /* pkv_addr [.], multiples of 16: of page p, KV head h:
     * page[p % ring_pages * page_stride + h * head_stride] */
    pkv_addr page;
    uint32_t head_stride, page_stride;
    uint32_t ring_pages; /* the number of pages where nothing is reused */
    uint32_t first_page; /* pages before it are not here: who reads them brings a tile */
    /*
     * A hot set: the token at position p is *key* p - key_shift here (modulo 2^32), and that number
     * takes the place of the position everywhere below. Of KV head h, keys before first_key[h] are
     * not there, nor need their pages be. first_key: u32 [kv_heads], 0 = all are there.
     */
    pkv_addr first_key;
    uint32_t key_shift;
    /* What SCORE keeps: f32 [kv_heads][score_stride], by key; 0 = nothing is kept. */
    uint32_t score_stride;
    pkv_addr score;
};

/* Pages of one sequence in one layer that are not where its view says, as many as are read. */
struct pkv_kv_tile {
    pkv_addr page; /* pkv_addr [.]: of page first_page + i, KV head h: page[i * page_stride + h] */
    uint32_t first_page, page_stride;
};

/* Consecutive tokens of one sequence among the rows of a step. */
struct pkv_row_span {
    uint32_t view;      /* which pkv_kv_view */
    uint32_t first_row; /* row of its first token */
    uint32_t rows;
    uint32_t first_position; /* of its first token */
};

/* Write k and v of every row to the slot of its key. */
struct pkv_args_append {
    pkv_addr k, v;  /* f32 [rows][k_stride], [rows][v_stride] */
    pkv_addr views; /* struct pkv_kv_view [.] */
    pkv_addr spans; /* struct pkv_row_span [span_count] */
    enum pkv_kv_type kv_type;
    uint32_t span_count, rows, kv_heads, head_dim, k_stride, v_stride;
};

/*
 * Causal attention of every row over the entries of its sequence up to and including itself (and,
 * with window > 0, at most window of them). Query head h reads KV head h / (heads / kv_heads).
 * score = scale * q.k (scale > 0), then softcap * tanh(score / softcap) where softcap > 0.
 * Source: Dao et al., FlashAttention-2, arXiv:2307.08691 (online softmax); Flash-Decoding (split
 * keys).
 *
 * Launches over adjacent ranges of keys in ascending order, each but the first with carry_in and
 * each but the last with carry_out, give the bits of one launch over all keys. A row head that
 * sees no key of a range passes through; by the last launch it must have seen one. All of tile,
 * range and carry 0: every key in one launch.
 */
struct pkv_args_attend {
    pkv_addr q;     /* f32 [rows][q_stride] */
    pkv_addr views; /* struct pkv_kv_view [.] */
    pkv_addr spans; /* struct pkv_row_span [span_count]; rows in none of them stay as they are */
    struct pkv_act out; /* cols = heads * head_dim; q8 only if head_dim % 32 == 0 */
    pkv_addr lse;       /* f32 [rows][heads]: log of the sum of exp(score), or 0 */
    pkv_addr scratch;   /* pkvi_attend_scratch_bytes() */
    uint64_t scratch_bytes;
    enum pkv_kv_type kv_type;
    float scale, softcap;
    uint32_t span_count, rows, heads, kv_heads, head_dim, window, q_stride;
    /* Where pages before the view's first_page are; page 0: none is read. Only with one span. */
    struct pkv_kv_tile tile;
    /* Keys of every sequence to handle: multiples of PKV_SPLIT_KEYS; key_end 0: to the end. */
    uint32_t key_begin, key_end;
    /* pkvi_attend_carry_bytes() or 0, what row heads come to so far: largest scores f32
     * [rows][heads], sums of exp(score - largest) likewise, values weighted so [..][head_dim]. */
    pkv_addr carry;
    uint32_t carry_in;  /* 1: start from carry */
    uint32_t carry_out; /* 1: leave the result in carry; out and lse stay as they are */
};

/*
 * How much rows attend to keys: for the key j of KV head h,
 *   s = sum over the span's rows r that count of weight(r) * mean over h's query heads of p(r, j),
 *   p(r, j) = exp(score of ATTEND - lse[r]), 0 for keys that r does not see,
 * rows in ascending order; view.score[h][j] = s for keys from the span's first one on, and
 * keep * view.score[h][j] + s before it (s alone where keep is 0). Rows that count are all but the
 * first skip_rows of a span; weight(r) = weight + (r - skip_rows) * weight_step. At most key_end -
 * key_begin keys are touched, of those up to the span's last row.
 * Source: the columns of attention that SnapKV (arXiv:2404.14469) sums over a prompt's last rows,
 * H2O (arXiv:2306.14048) over all; by a second pass over log-sum-exp, no matrix of rows x keys.
 */
struct pkv_args_score {
    pkv_addr q;       /* f32 [rows][q_stride] */
    pkv_addr lse;     /* f32 [rows][heads], as ATTEND leaves it */
    pkv_addr views;   /* struct pkv_kv_view [.], with score */
    pkv_addr spans;   /* struct pkv_row_span [span_count] */
    pkv_addr scratch; /* pkvi_score_scratch_bytes() */
    enum pkv_kv_type kv_type;
    float scale, softcap;
    uint32_t span_count, rows, heads, kv_heads, head_dim, q_stride;
    struct pkv_kv_tile tile;     /* as of ATTEND; only with one span */
    uint32_t key_begin, key_end; /* multiples of PKV_PAGE_TOKENS; key_end 0: to the end */
    uint32_t skip_rows;
    float weight, weight_step, keep;
};

enum pkv_place_pick {
    PKV_PLACE_TOP,   /* the best scores */
    PKV_PLACE_RANDOM /* a control: by a hash of (seed, KV head, token) */
};

/*
 * Fill a hot set: the best tokens of [0, end) to the keys [first_key[h], slots) of `to`, in
 * ascending order, for each KV head as many as there is room for, and not more than there are. Best
 * are the first `sinks` tokens, then those with the largest score, which is first max-pooled over
 * `pool` (odd) neighbours within [0, end); of equal ones the earlier. Entries are copied as they
 * are, and score and token go along: to.score[h][key] = gain * from.score[h][token], +inf of sinks;
 * after the slots come the scores of the tokens [end, tokens), those of the ring.
 * Source: SnapKV, arXiv:2404.14469 (pooling); sinks: StreamingLLM, arXiv:2309.17453.
 */
struct pkv_args_place {
    struct pkv_kv_view from; /* key = token; pages before first_page are read from `blocks`;
                                score 0: all scores are 0 */
    struct pkv_kv_view to;   /* key_shift = end - slots */
    pkv_addr blocks; /* pkv_addr [from.first_page]: page of KV head h at h * the bytes of a page */
    pkv_addr slot_token; /* i32 [kv_heads][slots]; -1 where there is nothing */
    pkv_addr scratch;    /* f32 [kv_heads][end + 2 * slots] */
    enum pkv_kv_type kv_type;
    enum pkv_place_pick pick;
    uint32_t kv_heads, head_dim, slots, end, tokens, sinks, pool;
    uint32_t seed;
    float gain;
};

/*
 * The tokens [first_token, first_token + leave), which are about to leave the ring (keys from
 * `slots` on), compete with the slots of their KV head, in ascending order: each takes a free slot
 * (those from least_key[h] to first_key[h], the last first), else the one with the least score, of
 * equal ones the first, if its own score is larger. Scores of the rest of the ring, `tokens` in all
 * with those that leave, then move down by `leave`.
 */
struct pkv_args_compete {
    struct pkv_kv_view hot;
    pkv_addr slot_token; /* i32 [kv_heads][slots] */
    pkv_addr least_key;  /* u32 [kv_heads]: slots before it have no page */
    pkv_addr resident;   /* u32 [kv_heads][resident_stride], as RECALL has it, or 0 */
    uint32_t resident_stride;
    enum pkv_kv_type kv_type;
    uint32_t kv_heads, head_dim, slots, first_token, leave, tokens;
};

/*
 * Which of the keys [0, count) go on: the first `sinks`, then those with the largest sum over KV
 * heads of view.score, of equal ones the first; `stay` in all, in ascending order, and behind them
 * the `window` keys from `count` on: index[stay + window].
 * Source: PyramidInfer, arXiv:2405.12532: one set for all heads of a layer.
 */
struct pkv_args_keep {
    pkv_addr score;   /* f32 [kv_heads][score_stride] */
    pkv_addr index;   /* i32 [stay + window] */
    pkv_addr scratch; /* f32 [count] */
    uint32_t kv_heads, score_stride, count, stay, window, sinks;
};

/* x[i] = x[index[i]] of rows in ascending order, in place: index ascends, index[i] >= i. */
struct pkv_args_gather {
    pkv_addr x;     /* f32 [.][cols] */
    pkv_addr index; /* i32 [rows] */
    uint32_t rows, cols;
};

#define PKV_THIN_MOST 1024u /* keys of a zone, at most */
/*
 * A zone is thinned out: of the keys [zone_first, zone_first + zone) those with the largest sum
 * over KV heads of scale * view.score + weighted_scale * weighted stay, of equal ones the first;
 * `stay` of them, the same for all KV heads. The others are dropped: with d = zone - stay, the
 * entries [first_key, first_key + d) that stay move, in ascending order, to the places of those
 * that were dropped from first_key + d on, so that afterwards keys begin there. zone_first >=
 * first_key.
 */
struct pkv_args_thin {
    struct pkv_kv_view view; /* its own first_key is not read */
    pkv_addr weighted;       /* f32 [kv_heads][view.score_stride] */
    enum pkv_kv_type kv_type;
    uint32_t kv_heads, head_dim, zone_first, zone, stay, first_key;
    float scale, weighted_scale;
};

/*
 * An index: some channels of every key of a full block, in few bits. The channels are static, of
 * the model, and whole rotary pairs: channel[2i] and channel[2i + 1] are the two of a pair, in the
 * order in which ROPE takes them, or two that are not rotated.
 * A key's code is clamp(rint((k - mean) / step + 7.5), 0, 15) in 4 bits, 127.5 and 255 in 8.
 * Page of a block and KV head, 4 bits: [channels / 8][32 tokens][4 bytes], byte i of group g has
 * channel 8g + i in its low half and 8g + 4 + i in its high half; 8 bits: [channels / 4][32
 * tokens][4 bytes], channel 4g + i.
 */
struct pkv_index {
    pkv_addr channel;        /* u16 [kv_heads][channels] */
    pkv_addr mean, step;     /* f32 [kv_heads][channels]; step > 0 */
    uint32_t channels, bits; /* a multiple of 8, at most PKV_INDEX_CHANNELS; 4 or 8 */
};
#define PKV_INDEX_CHANNELS 256u

static inline uint32_t pkvi_index_page_bytes(const struct pkv_index *index)
{
    return PKV_PAGE_TOKENS * index->channels * index->bits / 8;
}

/* Index pages of the blocks [first_block, end_block) of a sequence: of block b, KV head h at
 * pages + (b * kv_heads + h) * pkvi_index_page_bytes(). All of them are full. */
struct pkv_args_index {
    struct pkv_kv_view from; /* key = position - key_shift; blocks before first_page: `blocks` */
    pkv_addr blocks; /* pkv_addr [from.first_page]: page of KV head h at h * the bytes of a page */
    pkv_addr pages;
    struct pkv_index index;
    enum pkv_kv_type kv_type;
    uint32_t kv_heads, head_dim, first_block, end_block;
};

/* What a hot set whose entries are recalled has besides its keys: in bytes from view.score on. */
struct pkv_recall_state {
    uint64_t slot_token; /* i32 [kv_heads][slots] */
    uint64_t query;      /* f32 [heads][head_dim]: q of the step before, rotated */
    uint64_t gain;       /* f32 [heads]: 1 / rms of that q before its norm; 0 = no norm */
    uint64_t resident;   /* u32 [kv_heads][blocks]: bit t of word b: token 32b + t is in a slot */
    uint64_t swap;       /* i32 [kv_heads][cap][2]: which token came, which went; -1 */
    uint64_t index;      /* pages, as of INDEX */
    uint32_t slots, blocks, cap; /* blocks: of the whole context; cap: 1 to PKV_RECALL_CAP */
};
#define PKV_RECALL_CAP 1024u
#define PKV_PREDICT_CHUNK 4096u /* tokens of a unit of PREDICT */

/*
 * What the last row of each span will attend to, by an index and a query that is made before
 * the row's own is there: of every token of a full block before the span
 *   score = sum over channels of round8(scale * q * step) * (code - 7.5), 127.5 in 8 bits,
 *   p = mean over the group's query heads of exp(score - lse), lse: log-sum-exp of these scores.
 * What is left out of q . k, the mean key's part, is the same for all keys.
 * round8: per query head to 8 bits, largest |value| = 127.
 * The query: `q` = rows of Wq for the index's channels, times the normed residual: rotated here,
 * after the gain of QK norm; or 0: the whole query of the step before, from the state.
 * Left in scratch (kernels/recall_plan.h): p of every token, the `cap` best of every chunk of
 * tokens that are neither in a slot nor in the ring, by (p, the earlier).
 * Source: InfiniGen (arXiv:2406.19707), with the layer's own norm, a mean step and this index.
 */
struct pkv_args_predict {
    pkv_addr q;      /* f32 [rows][q_stride], [heads][channels] used; or 0 */
    pkv_addr table;  /* f32 [rows][pairs][2], of ROPE */
    pkv_addr q_norm; /* f32 [head_dim] or 0 */
    pkv_addr views, spans;
    pkv_addr scratch; /* pkvi_recall_scratch_bytes() */
    struct pkv_index index;
    struct pkv_recall_state state;
    float scale;
    uint32_t span_count, heads, kv_heads, head_dim, pairs, halves, q_stride;
};

/*
 * Bring what PREDICT found, of each span and KV head: keys of slots and ring become decay * key +
 * p (0 of ring tokens whose block is not full); then the `cap` best in descending order each take
 * the slot with the least key, of equal ones the first, if p > hysteresis * key, and that key is
 * then p, and entries are read from host blocks. A slot is taken once a launch.
 * `start`: slots stay; resident is made from slot_token; nothing comes, scratch is not read.
 */
struct pkv_args_recall {
    pkv_addr views, spans;
    pkv_addr scratch; /* as PREDICT left it, with the same spans */
    pkv_addr blocks;  /* pkv_addr: of span.view v, block b: blocks[v * blocks_stride + b], the page
                         of  KV head h at h * the bytes of a page */
    uint64_t blocks_stride;
    pkv_addr counter; /* u32 [kv_heads]: entries brought are added */
    struct pkv_recall_state state;
    enum pkv_kv_type kv_type;
    float decay, hysteresis;
    uint32_t span_count, heads, kv_heads, head_dim, start;
};

/* x = cap * tanh(x / cap) */
struct pkv_args_softcap {
    pkv_addr x; /* f32 [rows][cols] */
    float cap;
    uint32_t rows, cols;
};

/* The k largest of each row, descending, ties by the smaller index; and log-sum-exp of the row. */
struct pkv_args_topk {
    pkv_addr x;      /* f32 [rows][cols] */
    pkv_addr ids;    /* i32 [rows][k] */
    pkv_addr values; /* f32 [rows][k] */
    pkv_addr lse;    /* f32 [rows] or 0 */
    uint32_t rows, cols, k;
};

/* Pages, or blocks, that hold so many tokens. */
static inline uint32_t pkvi_pages_of(uint32_t tokens)
{
    return tokens / PKV_PAGE_TOKENS + (tokens % PKV_PAGE_TOKENS != 0);
}

/* Bytes of one entry (K and V of one token and KV head). head_dim a multiple of 32 for q8_0. */
uint32_t pkvi_kv_entry_bytes(enum pkv_kv_type type, uint32_t head_dim);

/*
 * Scratch that PKV_OP_ATTEND wants at most: for max_rows rows of which no sequence holds more than
 * max_keys keys. Depends on threads. CUDA runs with any, and divides what there is room for.
 */
uint64_t pkvi_attend_scratch_bytes(uint32_t max_rows, uint32_t max_keys, uint32_t heads,
                                   uint32_t kv_heads, uint32_t head_dim, uint32_t threads);

/* Scratch of PKV_OP_SCORE: at most `rows` rows of a span count. */
uint64_t pkvi_score_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t kv_heads,
                                  uint32_t head_dim, uint32_t threads);

/* Scratch that PREDICT leaves for RECALL: at most so many spans. */
uint64_t pkvi_recall_scratch_bytes(const struct pkv_recall_state *state, uint32_t spans,
                                   uint32_t heads, uint32_t kv_heads);

/* Bytes of pkv_args_attend.carry. */
uint64_t pkvi_attend_carry_bytes(uint32_t rows, uint32_t heads, uint32_t head_dim);

/* What a CPU kernel gets as native_stream. */
struct pkvi_cpu_stream {
    struct pkvi_pool *pool; /* runtime/base/thread.h */
};

/* Best variant this machine runs, or PKV_CPU_SCALAR. */
enum pkv_cpu pkvi_cpu_best(void);
/* May this machine run it? */
bool pkvi_cpu_supports(enum pkv_cpu cpu);
const char *pkvi_cpu_name(enum pkv_cpu cpu);

/* The kernel of an operation in a CPU variant; never NULL for op < PKV_OP_COUNT. */
const struct pkv_kernel *pkvi_cpu_kernel(enum pkv_cpu cpu, uint32_t op);

#ifdef __cplusplus
}
#endif

#endif
