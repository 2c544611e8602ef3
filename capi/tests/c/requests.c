/* Calls that do not block: their results, waits, callbacks, and what happens to memory when they are given
 * up. */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 25, LENGTH = 100 };

static int32_t rank, size;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Functions are called on a progress thread too, and count what this thread reads. */
static void count(int *counter)
{
    __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
}

static int counted(const int *counter)
{
    return __atomic_load_n(counter, __ATOMIC_SEQ_CST);
}

static void ends(brv_request *request, brv_status status)
{
    CHECK(brv_request_wait(request, BRV_FOREVER) == status);
    CHECK(brv_request_test(request) == status);
    brv_request_free(request);
}

/* Every collective, with all of them in flight at once and waited for in another order. */
static void collectives(brv_group *group)
{
    enum { KINDS = 5 };
    static float sums[LENGTH], in[LENGTH], out[LENGTH];
    static int64_t data[LENGTH];
    static double all[64 * LENGTH];
    brv_request *requests[KINDS] = {NULL};
    brv_options options = BRV_OPTIONS_INIT;
    size_t i, index, left = KINDS;
    int32_t other;

    for (i = 0; i < LENGTH; i++) {
        sums[i] = in[i] = (float)number(1, rank, i, 100);
        data[i] = rank == size - 1 ? number(2, 0, i, 100) : -1;
        all[(size_t)rank * LENGTH + i] = number(3, rank, i, 100);
    }
    options.timeout = 30;
    options.name = "layer1";
    CHECK(brv_iall_reduce(group, sums, sums, LENGTH, BRV_F32, BRV_SUM, &requests[0], NULL) == BRV_OK);
    CHECK(brv_ibarrier(group, &requests[1], NULL) == BRV_OK);
    CHECK(brv_ibroadcast(group, data, LENGTH, BRV_I64, size - 1, &requests[2], &options) == BRV_OK);
    CHECK(brv_iall_gather(group, all + (size_t)rank * LENGTH, all, LENGTH, BRV_F64, &requests[3], NULL) ==
          BRV_OK);
    CHECK(brv_iall_reduce(group, in, out, LENGTH, BRV_F32, BRV_MAX, &requests[4], &options) == BRV_OK);
    while (left > 0) {
        CHECK(brv_request_wait_any(requests, KINDS, BRV_FOREVER, &index) == BRV_OK && index < KINDS);
        brv_request_free(requests[index]);
        requests[index] = NULL;
        left--;
    }
    CHECK_FAILS(brv_request_wait_any(requests, KINDS, 0, &index), BRV_ERR_ARGUMENT, "no request");
    CHECK(brv_request_wait_all(requests, KINDS, 0) == BRV_OK);
    for (i = 0; i < LENGTH; i++) {
        int sum = 0, most = -1000;
        for (other = 0; other < size; other++) {
            int value = number(1, other, i, 100);
            sum += value;
            most = value > most ? value : most;
            CHECK(all[(size_t)other * LENGTH + i] == number(3, other, i, 100));
        }
        CHECK(sums[i] == (float)sum && out[i] == (float)most && in[i] == (float)number(1, rank, i, 100));
        CHECK(data[i] == number(2, 0, i, 100));
    }
}

static void refused(brv_group *group)
{
    float data[2] = {0, 0};
    int32_t whole[2] = {0, 0};
    brv_options options = BRV_OPTIONS_INIT;
    brv_request *request = (brv_request *)data;
    size_t index;

    options.name = "layer2";
    CHECK_FAILS(brv_iall_reduce(group, whole, whole, 2, BRV_I32, BRV_AVERAGE, &request, &options),
                BRV_ERR_ARGUMENT, "layer2: ");
    CHECK(request == NULL);
    CHECK_FAILS(brv_iall_reduce(group, data, data + 1, 2, BRV_F32, BRV_SUM, &request, NULL),
                BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_ibroadcast(group, data, 2, BRV_F32, size, &request, NULL), BRV_ERR_ARGUMENT, "root is");
    CHECK_FAILS(brv_ibroadcast(group, NULL, 2, BRV_F32, 0, &request, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    CHECK_FAILS(brv_ibarrier(NULL, &request, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_ibarrier(group, NULL, NULL), BRV_ERR_ARGUMENT, "request is NULL");
    CHECK_FAILS(brv_isend(group, data, 2, BRV_F32, 0, -1, &request, NULL), BRV_ERR_ARGUMENT, "tag is -1");
    CHECK_FAILS(brv_irecv(group, data, 2, BRV_F32, size, 0, &request, NULL), BRV_ERR_ARGUMENT, "from is");
    CHECK_FAILS(brv_request_test(NULL), BRV_ERR_ARGUMENT, "request is NULL");
    CHECK_FAILS(brv_request_wait(NULL, 1), BRV_ERR_ARGUMENT, "request is NULL");
    CHECK_FAILS(brv_request_wait_all(NULL, 1, 1), BRV_ERR_ARGUMENT, "requests is NULL");
    CHECK_FAILS(brv_request_wait_any(&request, 1, 1, NULL), BRV_ERR_ARGUMENT, "index is NULL");
    CHECK_FAILS(brv_request_wait_any(&request, 1, 1, &index), BRV_ERR_ARGUMENT, "no request");
    brv_request_free(NULL);
}

static int freed;

static void frees(brv_request *request, void *expected)
{
    CHECK(brv_request_test(request) == *(brv_status *)expected);
    brv_request_free(request);
    count(&freed);
}

/* A function may free its request while this thread cancels it, tests it, or waits for it. */
static void freed_meanwhile(brv_group *group)
{
    brv_status canceled = BRV_ERR_CANCELED, ok = BRV_OK;
    brv_request *request = NULL, *sending = NULL;
    int32_t place = 0, value = 5;

    __atomic_store_n(&freed, 0, __ATOMIC_SEQ_CST);
    CHECK(brv_irecv(group, &place, 1, BRV_I32, BRV_ANY, 30, &request, NULL) == BRV_OK);
    CHECK(brv_request_on_end(request, frees, &canceled) == BRV_OK);
    CHECK(brv_request_cancel(request) == BRV_OK);
    while (counted(&freed) < 1) {
        brv_group_progress(group);
    }
    if (strcmp(getenv("BREVITY_PROGRESS_THREAD") ? getenv("BREVITY_PROGRESS_THREAD") : "0", "1") == 0) {
        return; /* That thread might free it before the wait. */
    }
    CHECK(brv_irecv(group, &place, 1, BRV_I32, rank, 31, &request, NULL) == BRV_OK);
    CHECK(brv_request_on_end(request, frees, &ok) == BRV_OK);
    CHECK(brv_isend(group, &value, 1, BRV_I32, rank, 31, &sending, NULL) == BRV_OK);
    if (counted(&freed) < 2) {
        CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
    }
    CHECK(brv_request_wait(sending, BRV_FOREVER) == BRV_OK && counted(&freed) == 2 && place == 5);
    brv_request_free(sending);
}

static void messages(brv_group *group)
{
    static int32_t sent[LENGTH], place[64][LENGTH];
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size, other;
    brv_request *sends[64], *receives[64], *probe = NULL;
    brv_message message = {0, 0, 0};
    size_t i;

    for (i = 0; i < LENGTH; i++) {
        sent[i] = number(4, rank, i, 1000);
    }
    /* Receives of any source, of every rank one; lengths are the sender's. */
    for (other = 0; other < size; other++) {
        CHECK(brv_irecv(group, place[other], LENGTH, BRV_I32, BRV_ANY, 7, &receives[other], NULL) == BRV_OK);
        CHECK(brv_isend(group, sent, (size_t)rank + 1, BRV_I32, other, 7, &sends[other], NULL) == BRV_OK);
    }
    CHECK(brv_request_wait_all(receives, (size_t)size, BRV_FOREVER) == BRV_OK);
    CHECK(brv_request_wait_all(sends, (size_t)size, BRV_FOREVER) == BRV_OK);
    for (other = 0; other < size; other++) {
        CHECK(brv_request_message(receives[other], &message) == BRV_OK);
        CHECK(message.tag == 7 && message.bytes == 4 * ((uint64_t)message.source + 1));
        for (i = 0; i <= (size_t)message.source; i++) {
            CHECK(place[other][i] == number(4, message.source, i, 1000));
        }
        CHECK_FAILS(brv_request_message(sends[other], &message), BRV_ERR_ARGUMENT, "no message");
        brv_request_free(receives[other]);
        brv_request_free(sends[other]);
    }
    /* A probe leaves its message, and tells the length. */
    CHECK(brv_iprobe(group, before, BRV_ANY, &probe, NULL) == BRV_OK);
    CHECK(brv_isend(group, sent, 3, BRV_I32, next, 9, &sends[0], NULL) == BRV_OK);
    CHECK(brv_request_wait(probe, BRV_FOREVER) == BRV_OK && brv_request_message(probe, &message) == BRV_OK);
    CHECK(message.source == before && message.tag == 9 && message.bytes == 12);
    CHECK(brv_irecv(group, place[0], 2, BRV_I32, before, 9, &receives[0], NULL) == BRV_OK);
    ends(receives[0], BRV_ERR_TRUNCATED);
    ends(sends[0], BRV_OK);
    brv_request_free(probe);
    /* What nobody sends is canceled, or its time passes: nothing is closed. */
    CHECK(brv_irecv(group, place[0], 2, BRV_I32, BRV_ANY, 11, &receives[0], NULL) == BRV_OK);
    CHECK(brv_request_wait(receives[0], 0.02) == BRV_PENDING);
    CHECK(brv_request_message(receives[0], &message) == BRV_PENDING);
    CHECK(brv_request_cancel(receives[0]) == BRV_OK);
    ends(receives[0], BRV_ERR_CANCELED);
    {
        brv_options options = BRV_OPTIONS_INIT;
        options.timeout = 0.05;
        CHECK(brv_irecv(group, place[0], 2, BRV_I32, before, 11, &receives[0], &options) == BRV_OK);
        ends(receives[0], BRV_ERR_TIMEOUT);
    }
}

static void counts(brv_request *request, void *user_data)
{
    (void)request;
    count(user_data);
}

/* A wait whose time passes closes nothing. */
static void late(brv_group *group)
{
    brv_request *request = NULL;
    brv_request *list[2] = {NULL, NULL};
    size_t index = 0;
    int32_t value = 1, other;
    int called = 0;

    /* The others come when rank 0 has waited. */
    if (rank != 0) {
        CHECK(brv_recv(group, NULL, 0, BRV_U8, 0, 20, NULL, NULL) == BRV_OK);
    }
    CHECK(brv_iall_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, &request, NULL) == BRV_OK);
    if (rank == 0 && size > 1) {
        double start = now();
        list[1] = request;
        CHECK(brv_request_test(request) == BRV_PENDING);
        CHECK(brv_request_wait(request, 0.05) == BRV_PENDING);
        CHECK(brv_request_wait_any(list, 2, 0.05, &index) == BRV_PENDING && index == 2);
        CHECK(brv_request_wait_all(list, 2, 0.05) == BRV_PENDING);
        CHECK(now() - start >= 0.15 && now() - start < 5);
        CHECK(brv_request_cancel(request) == BRV_OK);
        CHECK(brv_request_on_end(request, counts, &called) == BRV_OK && counted(&called) == 0);
        CHECK_FAILS(brv_request_on_end(request, counts, &called), BRV_ERR_ARGUMENT, "has a function");
        for (other = 1; other < size; other++) {
            CHECK(brv_send(group, NULL, 0, BRV_U8, other, 20, NULL) == BRV_OK);
        }
        CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK && counted(&called) == 1);
    }
    ends(request, BRV_OK);
    CHECK(value == size && counted(&called) == (rank == 0 && size > 1));
}

static void *start_many(void *argument)
{
    struct many {
        brv_group *group;
        brv_request **requests;
        double (*values)[LENGTH];
    } *many = argument;
    size_t i, k;

    for (i = 0; i < COUNT; i++) {
        for (k = 0; k < LENGTH; k++) {
            many->values[i][k] = rank + (double)(i + k);
        }
        CHECK(brv_iall_reduce(many->group, many->values[i], many->values[i], LENGTH, BRV_F64, BRV_SUM,
                              &many->requests[i], NULL) == BRV_OK);
    }
    return NULL;
}

/* 50 requests of two threads, on a group each, and a loop of the program's own that sleeps on the
 * descriptor. */
static void event_loop(brv_group *group)
{
    static double values[2][COUNT][LENGTH];
    static brv_request *requests[2][COUNT];
    struct {
        brv_group *group;
        brv_request **requests;
        double (*values)[LENGTH];
    } many[2];
    pthread_t threads[2];
    int thread, ended = 0;
    size_t i, k;

    for (thread = 0; thread < 2; thread++) {
        CHECK(brv_group_duplicate(group, &many[thread].group, NULL) == BRV_OK);
        many[thread].requests = requests[thread];
        many[thread].values = values[thread];
    }
    for (thread = 0; thread < 2; thread++) {
        CHECK(pthread_create(&threads[thread], NULL, start_many, &many[thread]) == 0);
    }
    for (thread = 0; thread < 2; thread++) {
        CHECK(pthread_join(threads[thread], NULL) == 0);
    }
    while (ended < 2 * COUNT) {
        int descriptor = -1, milliseconds = -2;
        brv_status status = brv_group_prepare_sleep(group, &descriptor, &milliseconds);
        CHECK(status == BRV_OK || status == BRV_PENDING);
        for (thread = 0; thread < 2; thread++) {
            for (i = 0; i < COUNT; i++) {
                if (requests[thread][i] == NULL) {
                    continue;
                }
                if (status == BRV_PENDING && brv_request_test(requests[thread][i]) == BRV_OK) {
                    for (k = 0; k < LENGTH; k++) {
                        double sum = (double)(size * (size - 1) / 2) + (double)size * (double)(i + k);
                        CHECK(values[thread][i][k] == sum);
                    }
                    brv_request_free(requests[thread][i]);
                    requests[thread][i] = NULL;
                    ended++;
                }
            }
        }
        if (status == BRV_OK) {
            struct pollfd watched = {0, POLLIN, 0};
            watched.fd = descriptor;
            CHECK(descriptor >= 0 && milliseconds <= 1000);
            if (milliseconds >= 0) {
                poll(&watched, 1, milliseconds);
            }
            /* What has ended meanwhile is found by the next round. */
            for (thread = 0; thread < 2; thread++) {
                for (i = 0; i < COUNT; i++) {
                    if (requests[thread][i] != NULL && brv_request_test(requests[thread][i]) == BRV_OK) {
                        brv_request_free(requests[thread][i]);
                        requests[thread][i] = NULL;
                        ended++;
                    }
                }
            }
        }
    }
    for (thread = 0; thread < 2; thread++) {
        brv_group_free(many[thread].group);
    }
}

enum { CHAIN = 1000 };

static struct {
    brv_group *group;
    int done;
    int32_t value;
    int has_failed;
} chain;

/* Starts the next call when one has ended. */
static void next_of_chain(brv_request *request, void *user_data)
{
    brv_request *next = NULL;

    if (request != NULL) {
        if (brv_request_test(request) != BRV_OK || chain.value != size || user_data != &chain) {
            count(&chain.has_failed);
        }
        /* A wait would be one for this thread. */
        if (brv_barrier(chain.group, NULL) != BRV_ERR_ARGUMENT) {
            count(&chain.has_failed);
        }
        brv_request_free(request);
        count(&chain.done);
    }
    if (counted(&chain.done) < CHAIN) {
        chain.value = 1;
        if (brv_iall_reduce(chain.group, &chain.value, &chain.value, 1, BRV_I32, BRV_SUM, &next, NULL) !=
                BRV_OK ||
            brv_request_on_end(next, next_of_chain, &chain) != BRV_OK) {
            count(&chain.has_failed);
        }
    }
}

static void callbacks(brv_group *group)
{
    chain.group = group;
    next_of_chain(NULL, NULL);
    while (counted(&chain.done) < CHAIN && !counted(&chain.has_failed)) {
        brv_group_progress(group);
    }
    CHECK(!counted(&chain.has_failed));
}

static void *mapped(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Requests are freed while they are pending, then their group, then their memory. */
static void given_up(brv_group *group)
{
    size_t bytes = (size_t)4 << 20;
    brv_group *part = NULL;
    char *sent = mapped(bytes), *received = mapped(bytes), *sums = mapped(bytes);
    brv_request *requests[3] = {NULL, NULL, NULL};
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    int called = 0, called_before;

    CHECK(brv_group_duplicate(group, &part, NULL) == BRV_OK);
    CHECK(brv_isend(part, sent, bytes, BRV_U8, next, 1, &requests[0], NULL) == BRV_OK);
    CHECK(brv_irecv(part, received, bytes, BRV_U8, before, 2, &requests[1], NULL) == BRV_OK);
    if (rank == 0) {
        CHECK(brv_iall_reduce(part, sums, sums, bytes / 4, BRV_F32, BRV_SUM, &requests[2], NULL) == BRV_OK);
        /* A call of one rank has ended. */
        CHECK(size == 1 || brv_request_on_end(requests[2], counts, &called) == BRV_OK);
    }
    brv_request_free(requests[0]);
    if (rank != 0) {
        brv_request_free(requests[1]);
    }
    brv_request_free(requests[2]);
    /* Another rank may have aborted before; from here on it is not called. */
    called_before = counted(&called);
    brv_group_free(part);
    CHECK(munmap(sent, bytes) == 0 && munmap(received, bytes) == 0 && munmap(sums, bytes) == 0);
    if (rank == 0) {
        /* This one was kept: it has ended with the group. */
        CHECK(brv_request_test(requests[1]) == BRV_ERR_ABORTED);
        brv_request_free(requests[1]);
        CHECK(counted(&called) == called_before);
    }
}

/* Requests of several jobs in one wait. */
static void several_jobs(brv_group *group)
{
    brv_group *alone = NULL;
    brv_request *requests[2] = {NULL, NULL};
    int32_t mine = 0, value = 1;
    size_t index = 9;

    CHECK(brv_group_solo(&alone) == BRV_OK);
    CHECK(brv_irecv(alone, &mine, 1, BRV_I32, 0, 1, &requests[0], NULL) == BRV_OK);
    CHECK(brv_iall_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, &requests[1], NULL) == BRV_OK);
    CHECK(brv_request_wait_any(requests, 2, BRV_FOREVER, &index) == BRV_OK && index == 1 && value == size);
    CHECK(brv_request_wait_all(requests, 2, 0.05) == BRV_PENDING);
    {
        brv_request *sending = NULL;
        CHECK(brv_isend(alone, &value, 1, BRV_I32, 0, 1, &sending, NULL) == BRV_OK);
        CHECK(brv_request_wait_all(requests, 2, BRV_FOREVER) == BRV_OK && mine == value);
        ends(sending, BRV_OK);
    }
    brv_request_free(requests[0]);
    brv_request_free(requests[1]);
    brv_group_free(alone);
}

int main(void)
{
    brv_group *group = join();

    rank = brv_group_rank(group);
    size = brv_group_size(group);
    collectives(group);
    refused(group);
    messages(group);
    freed_meanwhile(group);
    late(group);
    event_loop(group);
    callbacks(group);
    several_jobs(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    given_up(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
