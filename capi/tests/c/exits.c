/* A process that exits while its group lives, and another thread uses or frees it, ends as it says that it
 * does: `exits WAY`.
 *
 * The C library writes what is left in its streams after all handlers and destructors: a stream that takes
 * its time leaves the other thread alone with what the destructors have left of the libraries. */
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

/* Until another rank has left, or this one. */
static void *call(void *unused)
{
    float data[1000] = {0};

    pthread_barrier_wait(&met);
    while (brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM) == BRV_OK)
        ;
    /* What is called after that fails, whenever it is called. */
    while (brv_barrier(group) != BRV_OK)
        ;
    return unused;
}

/* About when the process exits. */
static void *free_group(void *unused)
{
    pthread_barrier_wait(&met);
    pause_for(brv_group_rank(group));
    brv_group_free(group);
    return unused;
}

/* As the destructor of an object with static lifetime does. */
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
    CHECK(brv_barrier(group) == BRV_OK);
    if (other != NULL) {
        CHECK(pthread_barrier_init(&met, NULL, 2) == 0 && pthread_create(&thread, NULL, other, NULL) == 0);
        pthread_barrier_wait(&met);
        pause_for(other == call ? 20 : 1);
    }
    exit(0);
}
