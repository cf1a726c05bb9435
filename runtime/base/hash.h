/* hash.h: checksums and identities, not secrets: XXH3 of libxxhash, 64 bits. */
#ifndef PKV_BASE_HASH_H
#define PKV_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Of bytes that follow what `seed` stands for; 0 = nothing. Cost: some 10 GB/s. */
uint64_t pkvi_hash(const void *data, size_t bytes, uint64_t seed);

#endif
