/* Stands in for NVIDIA's libnvidia-ml.so.1: two devices, of which the second tells no power. */
#include <string.h>
typedef void *nvmlDevice_t;
typedef int nvmlReturn_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

static unsigned int index_of(nvmlDevice_t device) { return (unsigned int)((char *)device - (char *)0) - 1; }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
nvmlReturn_t nvmlInit_v2(void) { return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { (void)result; return "not supported"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)((char *)0 + index + 1);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    strncpy(uuid, index_of(device) ? "GPU-one" : "GPU-zero", length);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    (void)device;
    strncpy(name, "NVIDIA H100 80GB HBM3", length);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = 80ULL << 30;
    memory->used = (10ULL + index_of(device)) << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    *milliwatts = 431500;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    rates->gpu = index_of(device) ? 50 : 100;
    rates->memory = 0;
    return SUCCESS;
}
