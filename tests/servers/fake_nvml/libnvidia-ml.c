/* A management library that serves a scripted machine.
 *
 * The machine is a file, named by FAKE_NVML at nvmlInit, that whoever scripts it maps as well: what changes there is
 * what the next call answers. The layout is that of machine.py. Built by build.py, loaded by the real bindings.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GPUS 16
#define FIELDS 320
#define LINKS 36
#define VALUES 64
#define PIDS 16
#define EVENTS 256
#define NAMES 16
#define ABSENT INT64_MIN /* not supported */

enum { SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, SMALL = 7, NOT_LOADED = 9,
       TIMEOUT = 10, FUNCTION_NOT_FOUND = 13 };

struct gpu {
    char uuid[96], name[96], serial[32], bus[32];
    int64_t error;            /* what every call about it returns, 0: it answers */
    int64_t value[VALUES];    /* by the enum below */
    int64_t field[FIELDS];    /* by NVML_FI_* */
    int64_t link_active[LINKS], link_type[LINKS], link_peer[LINKS];
    int64_t link_counter[LINKS][5];
    int64_t pids[PIDS];
};
struct event { int64_t gpu, type, data; };
struct machine {
    int64_t layout;           /* sizeof(struct machine), so that the two sides agree */
    int64_t error;            /* what every call returns: 9, the driver is not loaded */
    int64_t count;
    char driver[80];
    char hangs[80];           /* the function that does not return */
    char missing[NAMES][80];  /* functions this driver does not have */
    int64_t calls;
    int64_t events_written;
    struct event events[EVENTS];
    struct gpu gpu[GPUS];
};
enum value {
    TEMPERATURE, SLOWDOWN, SHUTDOWN, MARGIN, POWER_MW, POWER_LIMIT_MW, POWER_REQUESTED_MW, SM_MHZ, SM_MAX_MHZ, MEMORY_MHZ,
    UTILIZATION, MEMORY_USED, MEMORY_TOTAL, THROTTLE, ECC_CORRECTED, ECC_UNCORRECTED, ECC_CORRECTED_AGGREGATE,
    ECC_UNCORRECTED_AGGREGATE, REMAPPED_CORRECTABLE, REMAPPED_UNCORRECTABLE, REMAP_PENDING, REMAP_FAILED, PCIE_GENERATION,
    PCIE_GENERATION_MAX, PCIE_WIDTH, PCIE_WIDTH_MAX, PCIE_REPLAYS, EVENT_TYPES, APPLICATION_SM_MHZ, APPLICATION_MEMORY_MHZ,
    PERSISTENCE, FABRIC_STATE, FABRIC_CLIQUE,
};

static volatile struct machine *machine;

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static int enter(const char *function) {
    if (!machine) return UNINITIALIZED;
    machine->calls++;
    while (strcmp((const char *)machine->hangs, function) == 0) pause_ms(2);
    for (int i = 0; i < NAMES; i++)
        if (strcmp((const char *)machine->missing[i], function) == 0) return FUNCTION_NOT_FOUND;
    return (int)machine->error;
}

static int enter_gpu(const char *function, void *device, volatile struct gpu **gpu) {
    int error = enter(function);
    if (error) return error;
    int64_t index = (int64_t)(intptr_t)device - 1;
    if (index < 0 || index >= machine->count) return INVALID;
    *gpu = &machine->gpu[index];
    return (int)(*gpu)->error;
}

#define ENTER(function) do { int error_ = enter(function); if (error_) return error_; } while (0)
#define ENTER_GPU(function) \
    volatile struct gpu *gpu; do { int error_ = enter_gpu(function, device, &gpu); if (error_) return error_; } while (0)
#define TELL(type, out, which) do { int64_t value_ = gpu->value[which]; if (value_ == ABSENT) return NOT_SUPPORTED; \
    *(out) = (type)value_; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *path = getenv("FAKE_NVML");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NOT_LOADED;
    struct machine *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED || mapped->layout != (int64_t)sizeof *mapped) return 999;
    if (machine) munmap((void *)machine, sizeof *machine);
    machine = mapped;
    return enter("nvmlInit");
}
int nvmlShutdown(void) { return enter("nvmlShutdown"); }
const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_LOADED: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires a reset";
    default: return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion");
    snprintf(out, size, "%s", (const char *)machine->driver);
    return SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER("nvmlDeviceGetCount"); *out = (unsigned)machine->count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    void *device = (void *)(intptr_t)(index + 1);
    ENTER_GPU("nvmlDeviceGetHandleByIndex");
    *out = device;
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned size) {
    ENTER_GPU("nvmlDeviceGetUUID");
    snprintf(out, size, "%s", (const char *)gpu->uuid);
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *out, unsigned size) {
    ENTER_GPU("nvmlDeviceGetName");
    snprintf(out, size, "%s", (const char *)gpu->name);
    return SUCCESS;
}
int nvmlDeviceGetSerial(void *device, char *out, unsigned size) {
    ENTER_GPU("nvmlDeviceGetSerial");
    if (!gpu->serial[0]) return NOT_SUPPORTED;
    snprintf(out, size, "%s", (const char *)gpu->serial);
    return SUCCESS;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out) {
    ENTER_GPU("nvmlDeviceGetPciInfo");
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", (const char *)gpu->bus);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) {
    (void)sensor;
    ENTER_GPU("nvmlDeviceGetTemperature");
    TELL(unsigned, out, TEMPERATURE);
    return SUCCESS;
}
int nvmlDeviceGetTemperatureThreshold(void *device, int which, unsigned *out) {
    ENTER_GPU("nvmlDeviceGetTemperatureThreshold");
    if (which > 1) return NOT_SUPPORTED;
    TELL(unsigned, out, which == 0 ? SHUTDOWN : SLOWDOWN);
    return SUCCESS;
}
struct margin { unsigned version; int margin; };
int nvmlDeviceGetMarginTemperature(void *device, struct margin *out) {
    ENTER_GPU("nvmlDeviceGetMarginTemperature");
    TELL(int, &out->margin, MARGIN);
    return SUCCESS;
}
#define SIMPLE(function, which) \
    int function(void *device, unsigned *out) { ENTER_GPU(#function); TELL(unsigned, out, which); return SUCCESS; }
SIMPLE(nvmlDeviceGetPowerUsage, POWER_MW)
SIMPLE(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT_MW)
SIMPLE(nvmlDeviceGetPowerManagementLimit, POWER_REQUESTED_MW)
SIMPLE(nvmlDeviceGetPersistenceMode, PERSISTENCE)
SIMPLE(nvmlDeviceGetCurrPcieLinkGeneration, PCIE_GENERATION)
SIMPLE(nvmlDeviceGetMaxPcieLinkGeneration, PCIE_GENERATION_MAX)
SIMPLE(nvmlDeviceGetCurrPcieLinkWidth, PCIE_WIDTH)
SIMPLE(nvmlDeviceGetMaxPcieLinkWidth, PCIE_WIDTH_MAX)
SIMPLE(nvmlDeviceGetPcieReplayCounter, PCIE_REPLAYS)
#define LONG(function, which) \
    int function(void *device, uint64_t *out) { ENTER_GPU(#function); TELL(uint64_t, out, which); return SUCCESS; }
LONG(nvmlDeviceGetCurrentClocksEventReasons, THROTTLE)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons, THROTTLE)
LONG(nvmlDeviceGetSupportedEventTypes, EVENT_TYPES)
int nvmlDeviceSetPowerManagementLimit(void *device, unsigned limit) {
    ENTER_GPU("nvmlDeviceSetPowerManagementLimit");
    gpu->value[POWER_REQUESTED_MW] = gpu->value[POWER_LIMIT_MW] = limit;
    return SUCCESS;
}
int nvmlDeviceSetPersistenceMode(void *device, int mode) {
    ENTER_GPU("nvmlDeviceSetPersistenceMode");
    gpu->value[PERSISTENCE] = mode;
    return SUCCESS;
}
int nvmlDeviceGetApplicationsClock(void *device, int type, unsigned *out) {
    ENTER_GPU("nvmlDeviceGetApplicationsClock");
    TELL(unsigned, out, type == 2 ? APPLICATION_MEMORY_MHZ : APPLICATION_SM_MHZ);
    return SUCCESS;
}
int nvmlDeviceSetApplicationsClocks(void *device, unsigned memory, unsigned graphics) {
    ENTER_GPU("nvmlDeviceSetApplicationsClocks");
    gpu->value[APPLICATION_MEMORY_MHZ] = memory;
    gpu->value[APPLICATION_SM_MHZ] = graphics;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *out) {
    ENTER_GPU("nvmlDeviceGetClockInfo");
    TELL(unsigned, out, type == 2 ? MEMORY_MHZ : SM_MHZ);
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *out) {
    (void)type;
    ENTER_GPU("nvmlDeviceGetMaxClockInfo");
    TELL(unsigned, out, SM_MAX_MHZ);
    return SUCCESS;
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out) {
    ENTER_GPU("nvmlDeviceGetUtilizationRates");
    TELL(unsigned, &out->gpu, UTILIZATION);
    out->memory = 0;
    return SUCCESS;
}
struct memory { uint64_t total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    ENTER_GPU("nvmlDeviceGetMemoryInfo");
    TELL(uint64_t, &out->total, MEMORY_TOTAL);
    TELL(uint64_t, &out->used, MEMORY_USED);
    out->free = out->total - out->used;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int error, int counter, uint64_t *out) {
    ENTER_GPU("nvmlDeviceGetTotalEccErrors");
    TELL(uint64_t, out, ECC_CORRECTED + error + 2 * counter);
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER_GPU("nvmlDeviceGetRemappedRows");
    TELL(unsigned, corrected, REMAPPED_CORRECTABLE);
    TELL(unsigned, uncorrected, REMAPPED_UNCORRECTABLE);
    TELL(unsigned, pending, REMAP_PENDING);
    TELL(unsigned, failed, REMAP_FAILED);
    return SUCCESS;
}
struct process { unsigned pid; uint64_t memory; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
    ENTER_GPU("nvmlDeviceGetComputeRunningProcesses");
    unsigned there = 0;
    while (there < PIDS && gpu->pids[there]) there++;
    unsigned room = *count;
    *count = there;
    if (room < there) return SMALL;
    for (unsigned i = 0; i < there; i++) out[i] = (struct process){(unsigned)gpu->pids[i], 0, 0, 0};
    return SUCCESS;
}
struct field { uint32_t id, scope; int64_t timestamp, latency; uint32_t type, result; int64_t value; };
int nvmlDeviceGetFieldValues(void *device, int count, struct field *out) {
    ENTER_GPU("nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        int64_t value = out[i].id < FIELDS ? gpu->field[out[i].id] : ABSENT;
        out[i].result = value == ABSENT ? NOT_SUPPORTED : SUCCESS;
        out[i].type = 3; /* unsigned long long */
        out[i].value = value;
    }
    return SUCCESS;
}
#define LINK(function) ENTER_GPU(function); \
    if (link >= LINKS || gpu->link_active[link] == ABSENT) return NOT_SUPPORTED
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out) {
    LINK("nvmlDeviceGetNvLinkState");
    *out = (unsigned)gpu->link_active[link];
    return SUCCESS;
}
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int counter, uint64_t *out) {
    LINK("nvmlDeviceGetNvLinkErrorCounter");
    if (counter > 4 || gpu->link_counter[link][counter] == ABSENT) return NOT_SUPPORTED;
    *out = (uint64_t)gpu->link_counter[link][counter];
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *out) {
    LINK("nvmlDeviceGetNvLinkRemoteDeviceType");
    *out = (unsigned)gpu->link_type[link];
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *out) {
    LINK("nvmlDeviceGetNvLinkRemotePciInfo");
    int64_t peer = gpu->link_peer[link];
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s",
             peer >= 0 && peer < GPUS ? (const char *)machine->gpu[peer].bus : "00000000:C0:00.0");
    return SUCCESS;
}
struct fabric { unsigned version; uint8_t cluster[16]; unsigned status; uint32_t clique; unsigned state; uint32_t health; };
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *out) {
    ENTER_GPU("nvmlDeviceGetGpuFabricInfoV");
    if (gpu->value[FABRIC_STATE] == ABSENT) return NOT_SUPPORTED;
    out->state = (unsigned)gpu->value[FABRIC_STATE];
    out->clique = (uint32_t)gpu->value[FABRIC_CLIQUE];
    out->status = SUCCESS;
    return SUCCESS;
}

/* An event set sees what happens after it was made, to the GPUs and of the types that were registered. */
struct set { int64_t seen; uint64_t wanted[GPUS]; };
int nvmlEventSetCreate(struct set **out) {
    ENTER("nvmlEventSetCreate");
    *out = calloc(1, sizeof **out);
    (*out)->seen = machine->events_written;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(void *device, uint64_t types, struct set *set) {
    ENTER_GPU("nvmlDeviceRegisterEvents");
    if (gpu->value[EVENT_TYPES] == ABSENT || types & ~(uint64_t)gpu->value[EVENT_TYPES]) return NOT_SUPPORTED;
    set->wanted[(intptr_t)device - 1] |= types;
    return SUCCESS;
}
struct event_data { void *device; uint64_t type, data; unsigned instance, compute; };
int nvmlEventSetWait_v2(struct set *set, struct event_data *out, unsigned timeout_ms) {
    for (unsigned waited_ms = 0;; waited_ms += 10) {
        ENTER("nvmlEventSetWait");
        while (set->seen < machine->events_written) {
            volatile struct event *event = &machine->events[set->seen++ % EVENTS];
            if (event->gpu < 0 || event->gpu >= GPUS || !(set->wanted[event->gpu] & (uint64_t)event->type)) continue;
            *out = (struct event_data){(void *)(intptr_t)(event->gpu + 1), (uint64_t)event->type, (uint64_t)event->data, 0, 0};
            return SUCCESS;
        }
        if (waited_ms >= timeout_ms) return TIMEOUT;
        pause_ms(10);
    }
}
int nvmlEventSetFree(struct set *set) {
    ENTER("nvmlEventSetFree");
    free(set);
    return SUCCESS;
}
