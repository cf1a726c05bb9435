/*
 * saved.h: a sequence's tokens with their K and V as a file. docs/kv-file.md has the format.
 *
 * A sequence that was saved and loaded goes on bit for bit as if nothing had happened, under any
 * budget, on the same device and kernels; but with a hot set (PKV_KV_HOT), which is filled anew.
 */
#ifndef PIVOTKV_SAVED_H
#define PIVOTKV_SAVED_H

#include "pivotkv/session.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pkv_saved; /* an opened file */

struct pkv_saved_info {
    uint32_t tokens;    /* whose K and V are in it */
    const int32_t *ids; /* [id_count], id_count >= tokens: what was sampled last has no K and V */
    uint32_t id_count;
    const char *note; /* [note_bytes] whatever the program that saved it wanted to keep */
    uint64_t note_bytes;
    uint64_t file_bytes;
};

#define PKV_SAVED_NOTE_BYTES ((uint64_t)16 << 20) /* most of a note */

/*
 * Write a sequence, of at least one token, to a file: under another name beside it first, then to
 * disk, then renamed. info->tokens and file_bytes are not read; id_count >= pkv_seq_tokens(seq).
 * PKV_ERR_IO: `path` is as it was. Cost: reads all K and V of the sequence back from the device or
 * host memory; 4 MiB more of pinned memory, or a block, that the session keeps. Threads: no step of
 * the session may run.
 */
PKV_API enum pkv_status pkv_seq_save(struct pkv_seq *seq, const char *path,
                                     const struct pkv_saved_info *info);

/* Could a file be written there? Looks before work is done for it; leaves nothing. */
PKV_API enum pkv_status pkv_saved_probe(const char *path);

/*
 * Open a file and check it: all but K and V themselves. PKV_ERR_IO: it cannot be read, is no
 * regular file. PKV_ERR_CORRUPT: not such a file, shorter or longer than it says, a checksum does
 * not hold. PKV_ERR_UNSUPPORTED: of another version. Memory: ids and note.
 */
PKV_API enum pkv_status pkv_saved_open(const char *path, struct pkv_saved **saved_out);
PKV_API void pkv_saved_close(struct pkv_saved *saved); /* NULL is allowed */
/* Valid until the file is closed. */
PKV_API void pkv_saved_query(const struct pkv_saved *saved, struct pkv_saved_info *info_out);

/*
 * Open a sequence with what is in the file. PKV_ERR_INVALID: saved with another model, or K and V
 * of another type. PKV_ERR_RANGE: more tokens than the session's context, a token that the model
 * does not have. PKV_ERR_CORRUPT: a checksum does not hold. PKV_ERR_NO_SLOT. No sequence is open
 * then, and the session as it was.
 */
PKV_API enum pkv_status pkv_seq_load(struct pkv_session *session, struct pkv_saved *saved,
                                     struct pkv_seq **seq_out);

#ifdef __cplusplus
}
#endif
#endif
