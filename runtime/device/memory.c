/* memory.c: device memory for users of the library, by the calls that the runtime itself makes. */
#include "runtime/device/device.h"

enum pkv_status pkv_memory_alloc(struct pkv_device *device, uint64_t bytes, pkv_addr *addr_out)
{
    return pkvi_mem_alloc(device, PKV_MEM_DEVICE, bytes, addr_out);
}

void pkv_memory_free(struct pkv_device *device, pkv_addr addr)
{
    pkvi_mem_free(device, PKV_MEM_DEVICE, addr);
}
