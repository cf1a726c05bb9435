/* engine.h: what commands with a model share: their options, and opening all in the right order. */
#ifndef PKV_CLI_ENGINE_H
#define PKV_CLI_ENGINE_H

#include "pivotkv/pivotkv.h"
#include "runtime/cli/options.h"

struct pkvi_engine_options {
    const char *model, *cache_dir;
    int64_t context_tokens, threads, kv_device_bytes; /* 0 = not given */
    int64_t kv_host_bytes, recent, check;
    const char *sinks, *pyramid; /* NULL = not given */
    double recent_ratio;
    struct pkvi_budget kv_budget;
    int device, cpu, kv_type, kv_policy, full_resident; /* words of their options */
    double link_gbps, link_latency_us;
    const char *sim; /* profile file; NULL = compute */
    bool quiet, json;
};
#define PKV_ENGINE_DEVICES "auto|cpu|cuda"
#define PKV_ENGINE_CPUS "auto|scalar|avx2|avx512|neon"
#define PKV_ENGINE_KV_TYPES "f16|bf16|f32|q8_0"
/* The first three, then recipes. */
#define PKV_ENGINE_POLICIES                                                                        \
    "auto|device|full|window|h2o|snapkv|snapkv-keep|pyramidkv|squeeze|pivot|pivot-ahead|prevstep|" \
    "pivot-norecall|oracle|random|pyramidinfer|pyramidinfer-paper"
#define PKV_ENGINE_FIRST_RECIPE 3
#define PKV_ENGINE_SINKS_MOST (1 << 20)
#define PKV_ENGINE_RESIDENTS "interleaved|first|last"
#define PKV_ENGINE_FAMILIES "chatml|llama2|llama3|gemma|mistral|phi3|zephyr"

/* -m, --cache-dir: what finding a model file needs. */
struct pkvi_option_set pkvi_engine_file_options(struct pkvi_engine_options *options);
/* Device, threads, kinds of K and V. */
struct pkvi_option_set pkvi_engine_device_options(struct pkvi_engine_options *options);
/* Of them, what does not say where K and V live. */
struct pkvi_option_set pkvi_engine_compute_options(struct pkvi_engine_options *options);
/* --sim: for commands that look at time alone. */
struct pkvi_option_set pkvi_engine_sim_options(struct pkvi_engine_options *options);
/* -c */
struct pkvi_option_set pkvi_engine_context_options(struct pkvi_engine_options *options);
/* --json, --quiet */
struct pkvi_option_set pkvi_engine_output_options(struct pkvi_engine_options *options);
/* --quiet alone */
struct pkvi_option_set pkvi_engine_quiet_option(struct pkvi_engine_options *options);

/* After parsing: PKV_GO_ON, or the exit code after one line about a missing -m. */
int pkvi_engine_check(const struct pkvi_engine_options *options);

/* Why "auto" took the cpu device; "" where it did not. */
struct pkvi_engine_why {
    char text[512];
};

struct pkvi_engine {
    char *path;
    struct pkv_tokenizer *tokenizer;
    struct pkv_tokenizer_info text;
    struct pkv_device *device;
    struct pkv_device_info device_info;
    struct pkvi_engine_why why_cpu;
    struct pkv_model *model;
    struct pkv_model_info model_info;
    struct pkv_session *session;
    struct pkv_memory_plan plan;
    uint32_t context_tokens;             /* of the session */
    struct pkv_calibration *calibration; /* of the model, where a policy asks for it; NULL: none */
    double *layer_weights;               /* of --pyramid file:PATH; NULL = none */
    uint64_t load_ns;
};

/*
 * What follows is called in this order; each words its own failure: false. Whatever was opened,
 * pkvi_engine_close() closes it.
 *
 * The path as given; else, if nothing is there and it names no folder, the file in CACHE/models.
 */
bool pkvi_engine_open_path(struct pkvi_engine *engine, const struct pkvi_engine_options *options);
/* That, and the tokenizer. */
bool pkvi_engine_open_text(struct pkvi_engine *engine, const struct pkvi_engine_options *options);
/* By name, or "auto": cuda where there is a GPU, else cpu; *why_out is written in that case. */
enum pkv_status pkvi_engine_open_device(const char *name, const struct pkv_device_config *config,
                                        struct pkv_device **device_out,
                                        struct pkvi_engine_why *why_out);
void pkvi_engine_say_why(const struct pkvi_engine_why *why); /* a note, where there is something */

/* The device, and of the model its shape: weights come when a session is opened, so that what does
 * not fit is refused before they are read. */
bool pkvi_engine_open_model(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                            bool exact);
/* What a command can do about a session that does not fit in memory. */
struct pkvi_engine_room {
    const char *less;      /* "a smaller --ctx-size" */
    uint32_t least_tokens; /* the context that this can bring it down to */
    bool one_sequence;     /* and the sequences to one */
    bool fixed_kv_type;    /* K and V cannot be of another type */
};
/* Says the memory plan, then loads the weights. config->kv_type and its budget come from the
 * options. */
bool pkvi_engine_open_session(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                              const struct pkvi_engine_room *room,
                              struct pkv_session_config *config);
/* The same without weights and session, and without saying the plan: engine->plan is filled in. */
bool pkvi_engine_plan_session(struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                              const struct pkvi_engine_room *room,
                              struct pkv_session_config *config);
/* The weights. */
bool pkvi_engine_load(struct pkvi_engine *engine);
void pkvi_engine_close(struct pkvi_engine *engine);
/* After pkvi_engine_open_text() alone. */
void pkvi_engine_close_text(struct pkvi_engine *engine);

/* True if text can be made into ids; else says why not: the file's damage before its lack of a
 * vocabulary, and of that what to do. */
bool pkvi_engine_needs_text(const struct pkvi_engine *engine, const char *advice);

/* True if every logit of row-major [rows, vocab] is finite; else says that, naming the position of
 * the first row that is not: `position` is the first row's. */
bool pkvi_engine_logits_ok(const struct pkvi_engine *engine, const float *logits, size_t rows,
                           size_t position);

/* The shape of this name; false: there is none. */
bool pkvi_engine_pyramid(const char *name, enum pkv_pyramid *pyramid_out);
/* Of --pyramid file:PATH: a number a global layer, from a JSON array; free() it. NULL: said why. */
double *pkvi_engine_weights(const struct pkvi_engine *engine, const char *path);

/* Bytes of K and V in the plan that are there: "device", "pinned". */
uint64_t pkvi_engine_kv_bytes(const struct pkvi_engine *engine, const char *where);
/* Is all of K and V kept in host memory? */
bool pkvi_engine_has_host(const struct pkvi_engine_options *options);

/* Bytes of a budget of a sequence of so many tokens. */
uint64_t pkvi_engine_budget_bytes(const struct pkvi_engine *engine,
                                  const struct pkvi_budget *budget, enum pkv_kv_type kv_type,
                                  uint32_t context_tokens);

/* What the KV tier moved since the session was opened, as a note; nothing without a host tier. */
void pkvi_engine_say_kv(const struct pkvi_engine *engine);

/* Model, device and memory as members of a record. */
struct pkvi_record;
void pkvi_engine_record(const struct pkvi_engine *engine, const struct pkvi_engine_options *options,
                        struct pkvi_record *record);

#endif
