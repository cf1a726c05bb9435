/* layout.h: parts of one allocation, laid out by the code that also measures it. */
#ifndef PKV_BASE_LAYOUT_H
#define PKV_BASE_LAYOUT_H

#include <stdint.h>

#define PKV_LAYOUT_ALIGN 256u

static inline uint64_t pkvi_aligned(uint64_t bytes)
{
    return (bytes + PKV_LAYOUT_ALIGN - 1) / PKV_LAYOUT_ALIGN * PKV_LAYOUT_ALIGN;
}

/* The next part: its address; *top moves behind it. With a base of 0, *top ends as the size. Sizes
 * cannot overflow: the caller has bounded each factor. */
static inline uint64_t pkvi_take(uint64_t *top, uint64_t bytes)
{
    const uint64_t at = *top;
    *top += pkvi_aligned(bytes);
    return at;
}

#endif
