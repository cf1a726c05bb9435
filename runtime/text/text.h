/*
 * text.h: how the parts of runtime/text work together.
 *
 * One tokenizer = one vocabulary (vocab.c) + markers (markers.c) + one of two ways to cut ordinary
 * text: byte-level BPE (split.c, bpe.c) or SPM (spm.c). Both cut by joining neighbours in order of
 * priority (merge.c).
 */
#ifndef PKV_TEXT_TEXT_H
#define PKV_TEXT_TEXT_H

#include "pivotkv/text.h"
#include "runtime/model/gguf.h"

/* ---- vocab.c: pieces and their ids ---------------------------------------------------------- */

/* Values of tokenizer.ggml.token_type. */
enum pkvi_token_kind {
    PKVI_TOKEN_NORMAL = 1,
    PKVI_TOKEN_UNKNOWN,
    PKVI_TOKEN_CONTROL,
    PKVI_TOKEN_USER, /* taken from ordinary text before anything else */
    PKVI_TOKEN_UNUSED,
    PKVI_TOKEN_BYTE
};

struct pkvi_piece {
    uint32_t text_at, text_bytes; /* as in the file: what is looked up */
    uint32_t out_at, out_bytes;   /* decoded: what it adds to a text */
};

struct pkvi_vocab {
    uint32_t count;
    uint32_t most_text_bytes, most_out_bytes; /* of any piece */
    struct pkvi_piece *piece;                 /* [count] */
    uint8_t *kind;                            /* [count] enum pkvi_token_kind */
    bool *is_end;                             /* [count] generation stops there */
    char *blob;                               /* texts, then those decoded bytes that differ */
    uint32_t blob_bytes;
    struct pkvi_slot {
        uint32_t hash, id; /* id UINT32_MAX = free */
    } * slot;
    uint32_t slot_mask;
};

/* Read tokens and token types. PKV_ERR_CORRUPT names key and index. Nothing is held then. */
enum pkv_status pkvi_vocab_open(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab_out);
void pkvi_vocab_fini(struct pkvi_vocab *vocab);
/* The id of a piece by its exact text, -1 if there is none. */
int32_t pkvi_vocab_find(const struct pkvi_vocab *vocab, const char *text, size_t bytes);
/* What a piece adds to a text, if that is not its text; at most as long as that. */
void pkvi_vocab_set_out(struct pkvi_vocab *vocab, uint32_t id, const char *data, uint32_t bytes);
/* UNKNOWN and CONTROL pieces never come out of ordinary text, and never go into it. */
bool pkvi_vocab_is_control(const struct pkvi_vocab *vocab, int32_t id);

/* ---- merge.c: join neighbours, best first --------------------------------------------------- */

struct pkvi_symbol {
    uint32_t at, bytes; /* its text, for those who look pairs up by text */
    int32_t id;         /* for those who look pairs up by id */
    int32_t prev, next; /* -1 = none */
    int32_t joined;     /* id of this symbol joined with the next, -1 = cannot be */
    uint32_t priority;  /* of that join; smaller goes first, then the one further left */
};

struct pkvi_merge {
    struct pkvi_symbol *symbol; /* [capacity]; after merging follow `next` from 0 */
    uint64_t *heap;             /* [3 * capacity] priority << 32 | symbol */
    size_t count, capacity, heap_count;
};

/* Id of left joined with right and its priority; -1 if they do not join. */
typedef int32_t (*pkvi_join_fn)(const void *context, const struct pkvi_symbol *left,
                                const struct pkvi_symbol *right, uint32_t *priority_out);

/* Add one symbol behind the others. PKV_ERR_NO_MEMORY. */
enum pkv_status pkvi_merge_add(struct pkvi_merge *merge, uint32_t at, uint32_t bytes, int32_t id);
/* Cost: count * log(count) joins. */
void pkvi_merge_run(struct pkvi_merge *merge, pkvi_join_fn join, const void *context);
void pkvi_merge_fini(struct pkvi_merge *merge);

/* ---- split.c: the pre-tokenizers of BPE ----------------------------------------------------- */

struct pkvi_split;
struct pkvi_split_match; /* scratch memory of one caller */

typedef enum pkv_status (*pkvi_word_fn)(void *context, const char *text, size_t bytes);

/* `pre` as in tokenizer.ggml.pre. PKV_ERR_UNSUPPORTED names it and those we have. */
enum pkv_status pkvi_split_open(const char *pre, struct pkvi_split **split_out);
void pkvi_split_close(struct pkvi_split *split);
bool pkvi_split_ignores_merges(const struct pkvi_split *split); /* whole words go first */
bool pkvi_split_adds_bos(const struct pkvi_split *split);       /* where the file does not say */
enum pkv_status pkvi_split_match_open(struct pkvi_split_match **match_out);
void pkvi_split_match_close(struct pkvi_split_match *match);
/* Cut valid UTF-8 into words, in order; their bytes together are the text. Cost: linear. */
enum pkv_status pkvi_split_run(const struct pkvi_split *split, struct pkvi_split_match *match,
                               const char *text, size_t bytes, pkvi_word_fn word, void *context);

/* ---- bpe.c, spm.c: ordinary text to ids ----------------------------------------------------- */

struct pkvi_bpe;
enum pkv_status pkvi_bpe_open(const struct pkvi_gguf *gguf, const char *pre,
                              struct pkvi_vocab *vocab, struct pkvi_bpe **bpe_out);
void pkvi_bpe_close(struct pkvi_bpe *bpe);
bool pkvi_bpe_adds_bos(const struct pkvi_bpe *bpe);

struct pkvi_spm;
enum pkv_status pkvi_spm_open(const struct pkvi_gguf *gguf, struct pkvi_vocab *vocab, int32_t unk,
                              struct pkvi_spm **spm_out);
void pkvi_spm_close(struct pkvi_spm *spm);
bool pkvi_spm_adds_space(const struct pkvi_spm *spm); /* before a text and after a marker */

/* What encoding one text needs besides; init with { 0 }. */
struct pkvi_encoder {
    struct pkvi_merge merge;
    struct pkvi_split_match *match;
    char *buffer;
    size_t buffer_bytes;
};

enum pkv_status pkvi_bpe_encode(const struct pkvi_bpe *bpe, struct pkvi_encoder *encoder,
                                const char *text, size_t bytes, struct pkv_ids *ids);
/* add_space: as if a space stood before the text. */
enum pkv_status pkvi_spm_encode(const struct pkvi_spm *spm, struct pkvi_encoder *encoder,
                                const char *text, size_t bytes, bool add_space,
                                struct pkv_ids *ids);

/* ---- markers.c: tokens found in raw text before it is cut ------------------------------------ */

struct pkvi_markers;
struct pkvi_marker {
    size_t at;
    int32_t id;
};

/* control: markers of all kinds, else only user-defined ones. */
enum pkv_status pkvi_markers_open(const struct pkvi_vocab *vocab, bool control,
                                  struct pkvi_markers **markers_out);
void pkvi_markers_close(struct pkvi_markers *markers);
/*
 * The markers of a text, in order, not overlapping: the longest one first wherever it stands, then
 * the one further left. *found_out is freed with free(), NULL if there are none.
 */
enum pkv_status pkvi_markers_find(const struct pkvi_markers *markers, const char *text,
                                  size_t bytes, struct pkvi_marker **found_out, size_t *count_out);

/* ---- tokenizer.c: the whole; what chat templates need besides the public calls ----------------
 */

struct pkv_tokenizer {
    struct pkvi_vocab vocab; /* count only, if there is no text */
    struct pkvi_bpe *bpe;    /* one of both, or none */
    struct pkvi_spm *spm;
    struct pkvi_markers *user_markers, *all_markers;
    bool strips_after_markers;
    int32_t bos, eos, eot, unk, pad;
    bool add_bos;
    char *model, *pre, *chat_template; /* chat_template: NULL if the file has none */
    size_t template_bytes;
    const char *chat_family, *chat_problem;
};

/* The gguf may be closed afterwards. */
enum pkv_status pkvi_tokenizer_from_gguf(const struct pkvi_gguf *gguf,
                                         struct pkv_tokenizer **tokenizer_out);
/* The id of a token by its exact text in the file, -1 if there is none. */
int32_t pkvi_tokenizer_find(const struct pkv_tokenizer *tokenizer, const char *text, size_t bytes);
/* tokenizer.chat_template, NULL if the file has none. Not terminated. */
const char *pkvi_tokenizer_template(const struct pkv_tokenizer *tokenizer, size_t *bytes_out);
/*
 * Append the ids of ordinary text: no BOS, no control tokens. follows_text: what stands before it
 * is text too, not the start or a marker, so that SPM puts no space before it. Text between two
 * markers must come in one call: where it is cut decides the ids. PKV_ERR_NO_MEMORY: `ids` is as
 * before.
 */
enum pkv_status pkvi_tokenizer_encode_plain(const struct pkv_tokenizer *tokenizer, const char *text,
                                            size_t bytes, bool follows_text, struct pkv_ids *ids);
/* The file's tokenizer drops white space behind this marker (Phi-3). */
bool pkvi_tokenizer_strips_after(const struct pkv_tokenizer *tokenizer, int32_t id);

/* ---- chat_template.c ------------------------------------------------------------------------- */

/* The family of a file's template, a static string; NULL and why if it is not known. */
const char *pkvi_chat_family(const char *text, size_t bytes, const char **problem_out);

#endif
