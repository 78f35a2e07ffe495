/* A stand-in for libnvidia-ml.so.1, for tests on machines without an NVIDIA driver.
 *
 * The environment variable FAKE_NVML names a file of lines "key=value". It is read again at each call, so that a test
 * can change it while a run goes on. The keys are listed in tests/gpu/fake_nvml.py. A key is looked up as "gpu1.KEY"
 * for the GPU 1, then as "KEY" for all. Structures and numbers are those of nvml.h (docs.nvidia.com/deploy/nvml-api).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MOST_GPUS = 16, MOST_SLICES = 8, MOST_PROCESSES = 64, LINE = 4096 };
enum { FIELD_ENERGY = 83, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186 };
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

typedef unsigned int uint;
typedef unsigned long long ull;
typedef struct { int gpu, slice; } Device; /* slice: a MIG device of the GPU, -1 for the GPU itself */
typedef struct { ull total, free, used; } Memory;
typedef struct { uint gpu, memory; } Rates;
typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } Process;
typedef struct { ull reference, violation; } Violation;
typedef union { double d; uint ui; unsigned long ul; ull u; long long s; int i; unsigned short us; } Value;
typedef struct { uint field, scope; long long timestamp, latency; uint type, result; Value value; } Field;

static Device devices[MOST_GPUS], slices[MOST_GPUS][MOST_SLICES];
static long calls_of[MOST_GPUS];

static int look(const char *key, char *found, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    size_t length = strlen(key);
    int known = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == '=') {
            snprintf(found, size, "%s", line + length + 1);
            known = 1;
        }
    }
    if (file) fclose(file);
    return known;
}

static void text(const Device *device, const char *key, char *found, size_t size, const char *standard) {
    char own[256];
    if (device) {
        snprintf(own, sizeof own, "gpu%d.%s", device->gpu, key);
        if (look(own, found, size)) return;
    }
    if (!look(key, found, size)) snprintf(found, size, "%s", standard);
}

static double number(const Device *device, const char *key, double standard) {
    char found[LINE];
    text(device, key, found, sizeof found, "");
    return *found ? atof(found) : standard;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* What the call `name` returns: an error of the file, the loss of the GPU, or success. */
static int result(const Device *device, const char *name) {
    char key[256], lost[LINE];
    if (device) {
        double after = number(device, "lost_after_calls", -1);
        calls_of[device->gpu]++;
        if (after >= 0 && calls_of[device->gpu] > after) return GPU_IS_LOST;
        text(device, "lost_once_file", lost, sizeof lost, "");
        if (*lost && !access(lost, F_OK)) return GPU_IS_LOST;
    }
    snprintf(key, sizeof key, "error.%s", name);
    return (int)number(device, key, SUCCESS);
}

#define CHECK(device)                                        \
    do {                                                     \
        int refused = result(device, __func__);              \
        if (refused) return refused;                         \
    } while (0)
#define CHECK_WHOLE(device)                                  \
    do {                                                     \
        CHECK(device);                                       \
        if ((device)->slice >= 0) return NOT_SUPPORTED;      \
    } while (0)

static int copy(const char *found, char *target, uint size) {
    if (strlen(found) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(target, found);
    return SUCCESS;
}

/* The item of a list "a,b,c"; 0 if it has fewer. */
static int item(const char *list, int index, char *found, size_t size) {
    for (; index > 0 && list; index--) list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
    if (!list || !*list) return 0;
    snprintf(found, size, "%.*s", (int)strcspn(list, ","), list);
    return 1;
}

static void uuid_of(const Device *device, char *found, size_t size) {
    char standard[64], list[LINE];
    snprintf(standard, sizeof standard, "GPU-%08d-0000-0000-0000-000000000000", device->gpu);
    if (device->slice < 0) {
        text(device, "uuid", found, size, standard);
        return;
    }
    text(device, "mig_uuids", list, sizeof list, "");
    if (!item(list, device->slice, found, size)) *found = 0;
}

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        devices[gpu] = (Device){gpu, -1};
        for (int slice = 0; slice < MOST_SLICES; slice++) slices[gpu][slice] = (Device){gpu, slice};
    }
    CHECK(NULL);
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int error) {
    switch (error) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, uint length) {
    char found[LINE];
    CHECK(NULL);
    text(NULL, "driver", found, sizeof found, "580.65.06");
    return copy(found, version, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CHECK(NULL);
    *version = (int)number(NULL, "cuda", 13000);
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(uint *count) {
    CHECK(NULL);
    *count = (uint)number(NULL, "count", 2);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(uint index, Device **device) {
    if (index >= number(NULL, "count", 2) || index >= MOST_GPUS) return INVALID_ARGUMENT;
    CHECK(&devices[index]);
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    char found[LINE];
    for (int gpu = 0; gpu < number(NULL, "count", 2) && gpu < MOST_GPUS; gpu++)
        for (int slice = -1; slice < MOST_SLICES; slice++) {
            Device *one = slice < 0 ? &devices[gpu] : &slices[gpu][slice];
            uuid_of(one, found, sizeof found);
            if (!*found || strcmp(found, uuid)) continue;
            CHECK(one);
            *device = one;
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Device *device, uint *index) {
    CHECK(device);
    *index = (uint)device->gpu;
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, uint length) {
    char found[LINE];
    CHECK(device);
    text(device, "name", found, sizeof found, "NVIDIA H100 80GB HBM3");
    if (device->slice >= 0) { /* the real one returns "NVIDIA A100-SXM4-40GB MIG 1g.5gb" */
        char profile[64];
        text(device, "mig_profile", profile, sizeof profile, "1g.10gb");
        snprintf(found + strlen(found), sizeof found - strlen(found), " MIG %s", profile);
    }
    return copy(found, name, length);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, uint length) {
    char found[LINE];
    CHECK(device);
    uuid_of(device, found, sizeof found);
    return copy(found, uuid, length);
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    char found[LINE];
    CHECK(device);
    text(device, "compute_capability", found, sizeof found, "9.0");
    return sscanf(found, "%d.%d", major, minor) == 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    const char *prefix = device->slice < 0 ? "" : "mig_";
    char key[64];
    CHECK(device);
    snprintf(key, sizeof key, "%smemory_total", prefix);
    memory->total = (ull)number(device, key, 85899345920.0);
    snprintf(key, sizeof key, "%smemory_used", prefix);
    memory->used = (ull)number(device, key, 1073741824.0);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) {
    CHECK_WHOLE(device);
    rates->gpu = (uint)number(device, "utilisation", 90);
    rates->memory = (uint)number(device, "memory_utilisation", 40);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, uint *count, Process *processes) {
    char list[LINE], one[64];
    uint known = 0;
    CHECK(device);
    text(device, "processes", list, sizeof list, "");
    while (known < MOST_PROCESSES && item(list, (int)known, one, sizeof one)) {
        if (processes && known < *count) {
            char *size = strchr(one, ':');
            processes[known] = (Process){(uint)atoi(one), size ? strtoull(size + 1, NULL, 10) : ~0ULL, ~0u, ~0u};
        }
        known++;
    }
    int fits = known <= *count;
    *count = known;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

static double power_mw(const Device *device) { return number(device, "power_w", 300) * 1000; }

int nvmlDeviceGetPowerUsage(Device *device, uint *milliwatts) {
    CHECK_WHOLE(device);
    *milliwatts = (uint)(number(device, "power_average_w", power_mw(device) / 1000) * 1000);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, ull *millijoules) {
    CHECK_WHOLE(device);
    *millijoules = (ull)(power_mw(device) * now_s());
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    CHECK_WHOLE(device);
    for (int i = 0; i < count; i++) {
        char key[64];
        snprintf(key, sizeof key, "error.field%u", fields[i].field);
        fields[i].result = (uint)number(device, key, SUCCESS);
        fields[i].type = TYPE_UNSIGNED_INT;
        if (fields[i].field == FIELD_ENERGY) {
            fields[i].type = TYPE_UNSIGNED_LONG_LONG;
            fields[i].value.u = (ull)(power_mw(device) * now_s());
        } else if (fields[i].field == FIELD_POWER_INSTANT || fields[i].field == FIELD_POWER_AVERAGE) {
            fields[i].value.ui = (uint)power_mw(device);
        } else {
            fields[i].result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

static int clock_mhz(const Device *device, uint kind, uint *mhz) {
    *mhz = (uint)(kind == 2 ? number(device, "memory_clock_mhz", 2619) : number(device, "sm_clock_mhz", 1980));
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(Device *device, uint kind, uint *mhz) {
    CHECK_WHOLE(device);
    return clock_mhz(device, kind, mhz);
}

int nvmlDeviceGetMaxClockInfo(Device *device, uint kind, uint *mhz) {
    CHECK_WHOLE(device);
    return clock_mhz(device, kind, mhz);
}

int nvmlDeviceGetTemperature(Device *device, uint sensor, uint *celsius) {
    (void)sensor;
    CHECK_WHOLE(device);
    *celsius = (uint)number(device, "temperature_c", 55);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, ull *reasons) {
    CHECK_WHOLE(device);
    *reasons = (ull)number(device, "throttle_mask", 0);
    return SUCCESS;
}

/* Time held back moves with the clock: the share of it that the file names. */
int nvmlDeviceGetViolationStatus(Device *device, uint policy, Violation *status) {
    CHECK_WHOLE(device);
    const char *key = policy == 0 ? "power_throttled_share" : policy == 1 ? "thermal_throttled_share" : NULL;
    status->reference = (ull)(now_s() * 1e6);
    status->violation = key ? (ull)(number(device, key, 0) * now_s() * 1e9) : 0;
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(Device *device, uint *mode) {
    CHECK_WHOLE(device);
    *mode = (uint)number(device, "persistence", 1);
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(Device *device, uint *mode) {
    CHECK_WHOLE(device);
    *mode = (uint)number(device, "compute_mode", 0);
    return SUCCESS;
}

int nvmlDeviceGetEccMode(Device *device, uint *current, uint *pending) {
    CHECK_WHOLE(device);
    *current = *pending = (uint)number(device, "ecc", 1);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *device, uint *current, uint *pending) {
    CHECK_WHOLE(device);
    *current = *pending = (uint)number(device, "mig", 0);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, uint *count) {
    CHECK_WHOLE(device);
    *count = number(device, "mig", 0) ? MOST_SLICES - 1 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, uint index, Device **slice) {
    char found[LINE];
    CHECK_WHOLE(device);
    if (index >= MOST_SLICES) return INVALID_ARGUMENT;
    uuid_of(&slices[device->gpu][index], found, sizeof found);
    if (!*found) return NOT_FOUND;
    *slice = &slices[device->gpu][index];
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(Device *device, uint *is_slice) {
    CHECK(device);
    *is_slice = device->slice >= 0;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *slice, Device **device) {
    CHECK(slice);
    if (slice->slice < 0) return INVALID_ARGUMENT;
    *device = &devices[slice->gpu];
    return SUCCESS;
}

int nvmlDeviceSetGpuLockedClocks(Device *device, uint low, uint high) {
    (void)low, (void)high;
    CHECK_WHOLE(device);
    return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(Device *device) {
    CHECK_WHOLE(device);
    return SUCCESS;
}
