/* kv_entry.c: number formats of K and V, their names and sizes. Knows nothing of kernels. */
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/base/check.h"

static const char *const names[PKV_KV_TYPE_COUNT] = {
    [PKV_KV_F16] = "f16", [PKV_KV_BF16] = "bf16", [PKV_KV_F32] = "f32", [PKV_KV_Q8_0] = "q8_0"};

const char *pkv_kv_type_name(enum pkv_kv_type type)
{
    return (uint32_t)type < PKV_KV_TYPE_COUNT ? names[type] : NULL;
}

enum pkv_status pkv_kv_type_parse(const char *name, enum pkv_kv_type *type_out)
{
    for (uint32_t type = 0; name && type < PKV_KV_TYPE_COUNT; type++) {
        if (strcmp(name, names[type]) == 0) {
            *type_out = (enum pkv_kv_type)type;
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_INVALID, "KV type '%s': expected f16, bf16, f32 or q8_0",
                    name ? name : "");
}

uint32_t pkvi_kv_entry_bytes(enum pkv_kv_type type, uint32_t head_dim)
{
    switch (type) {
    case PKV_KV_F16:
    case PKV_KV_BF16:
        return 4 * head_dim;
    case PKV_KV_F32:
        return 8 * head_dim;
    case PKV_KV_Q8_0:
        return 2 * (head_dim + head_dim / 32 * 2);
    case PKV_KV_TYPE_COUNT:
        break;
    }
    return 0;
}
