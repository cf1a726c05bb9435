/* hash.c: the only user of libxxhash. */
#include "runtime/base/hash.h"

#include <xxhash.h>

uint64_t pkvi_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
