/* A process that exits while its group lives, and while another thread uses or frees it, ends with its own
 * exit status: `exits WAY`.
 *
 * The C library flushes its streams after all handlers and destructors. During a slow flush, the other thread
 * runs on with libraries whose destructors have already run. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static brv_group *group;
static pthread_barrier_t met;

static void pause_for(long milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};

    nanosleep(&time, NULL);
}

static ssize_t write_slowly(void *cookie, const char *bytes, size_t count)
{
    (void)cookie, (void)bytes;
    pause_for(300);
    return (ssize_t)count;
}

/* Runs until another rank has left, or this one. */
static void *call(void *unused)
{
    float data[1000] = {0};

    pthread_barrier_wait(&met);
    while (brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM, NULL) == BRV_OK)
        ;
    /* Every later call fails, too. */
    while (brv_barrier(group, NULL) != BRV_OK)
        ;
    return unused;
}

/* About the time at which the process exits. */
static void *free_group(void *unused)
{
    pthread_barrier_wait(&met);
    pause_for(brv_group_rank(group));
    brv_group_free(group);
    return unused;
}

/* Like the destructor of an object with static lifetime. */
static void free_at_exit(void)
{
    brv_group_free(group);
}

int main(int argc, char **argv)
{
    FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_slowly});
    void *(*other)(void *) = NULL;
    pthread_t thread;

    CHECK(argc == 2 && stream != NULL && fputs("to be written at exit", stream) >= 0);
    if (strcmp(argv[1], "call") == 0)
        other = call;
    else if (strcmp(argv[1], "free") == 0)
        other = free_group;
    else
        CHECK(strcmp(argv[1], "handler") == 0 && atexit(free_at_exit) == 0);
    group = join();
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    if (other != NULL) {
        CHECK(pthread_barrier_init(&met, NULL, 2) == 0 && pthread_create(&thread, NULL, other, NULL) == 0);
        pthread_barrier_wait(&met);
        pause_for(other == call ? 20 : 1);
    }
    exit(0);
}
