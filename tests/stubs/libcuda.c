/* A stand-in for NVIDIA's libcuda.so.1 on a machine without a GPU: it finds no device, and logs who initialises CUDA.

Each line of the file LOG is a process and what it did: "cuInit", or "fork" of a process that has this library loaded.
A new program that a process starts is no fork here: Python starts it by vfork, which no handler of ours sees.

The driver's functions are found by name or, since CUDA 11.3, by cuGetProcAddress (CUDA Driver API, "Driver Entry Point
Access"); those that this file does not have answer CUDA_ERROR_NO_DEVICE. */

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NO_DEVICE 100

static void note(const char *what) {
    char line[64];
    int size = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), what);
    int file = open(LOG, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file >= 0) {
        if (write(file, line, (size_t)size) != size) _exit(99);
        close(file);
    }
}

static void note_fork(void) { note("fork"); }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(note_fork, NULL, NULL); }

static int no_device(void) { return NO_DEVICE; }

int cuInit(unsigned flags) {
    (void)flags;
    note("cuInit");
    return NO_DEVICE;
}

/* Newer than any runtime, so that none refuses the driver as too old before it initialises it. */
int cuDriverGetVersion(int *version) {
    *version = 99000;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return NO_DEVICE;
}

int cuGetErrorName(int error, const char **name) {
    (void)error;
    *name = "CUDA_ERROR_NO_DEVICE";
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    (void)error;
    *text = "a stand-in for the driver: no CUDA-capable device is detected";
    return SUCCESS;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status);

static void *found(const char *name) {
    if (!strcmp(name, "cuInit")) return (void *)cuInit;
    if (!strcmp(name, "cuDriverGetVersion")) return (void *)cuDriverGetVersion;
    if (!strcmp(name, "cuDeviceGetCount")) return (void *)cuDeviceGetCount;
    if (!strcmp(name, "cuGetErrorName")) return (void *)cuGetErrorName;
    if (!strcmp(name, "cuGetErrorString")) return (void *)cuGetErrorString;
    if (!strcmp(name, "cuGetProcAddress")) return (void *)cuGetProcAddress_v2;
    return (void *)no_device;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    (void)version;
    (void)flags;
    *function = found(name);
    return SUCCESS;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    if (status) *status = 0;
    return cuGetProcAddress(name, function, version, flags);
}
