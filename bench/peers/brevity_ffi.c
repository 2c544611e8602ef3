/* What bench/compare ffi measures of Brevity in Rust, through its C interface.
 *
 * Usage: brevity run -n P -- brevity_ffi SOCKET
 *
 * The orders and answers are those of conducted.h. An all-reduce is in place, as in Rust. Results are checked
 * before anything is timed; what is wrong ends the job.
 */
#define PROGRAM "brevity_ffi"
#include "conducted.h"
#include "messages.h"
#include <brevity.h>

enum { DATA = 1 };

static brv_group *group;

static void must(brv_status status, const char *call)
{
    if (status != BRV_OK)
        fail("%s: %s: %s", call, brv_status_string(status), brv_last_error());
}

static void join_job(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    must(brv_group_join(NULL, &group), "join");
    rank = brv_group_rank(group);
    world = brv_group_size(group);
}

static void wait_for_all(void)
{
    must(brv_barrier(group, NULL), "barrier");
}

/* Without a group there is nobody to tell. */
static void give_up(void)
{
    if (group != NULL)
        brv_group_abort(group);
}

static void ping_pong(unsigned char *out, unsigned char *in, int bytes, int count)
{
    for (int i = 0; i < count; i++) {
        if (rank % 2 == 0)
            must(brv_send(group, out, bytes, BRV_U8, peer, DATA, NULL), "send");
        must(brv_recv(group, in, bytes, BRV_U8, peer, DATA, NULL, NULL), "receive");
        if (rank % 2 == 1)
            must(brv_send(group, out, bytes, BRV_U8, peer, DATA, NULL), "send");
    }
}

static void all_reduce(int bytes, int iterations, int warmup)
{
    int count = bytes / (int)sizeof(float);
    float *data = buffer(bytes);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
    for (int i = 0; i < count; i++)
        data[i] = (float)(i % 1000 + rank);
    must(brv_all_reduce(group, data, data, count, BRV_F32, BRV_SUM, NULL), "all-reduce");
    for (int i = 0; i < count; i++)
        if (data[i] != (float)(world * (i % 1000) + world * (world - 1) / 2))
            fail("element %d of a sum of %d is wrong", i, count);
    /* Zeros stay zeros in every sum. */
    memset(data, 0, bytes);
    for (int i = 0; i < warmup; i++)
        must(brv_all_reduce(group, data, data, count, BRV_F32, BRV_SUM, NULL), "all-reduce");
    for (int sample = 0; sample < samples; sample++) {
        int calls = share(iterations, sample, samples);
        double start = now();
        for (int i = 0; i < calls; i++)
            must(brv_all_reduce(group, data, data, count, BRV_F32, BRV_SUM, NULL), "all-reduce");
        times[sample] = (now() - start) * 1e6 / calls;
    }
    answer(times, samples);
    free(data);
}

static void obey(const char *what, int bytes, int iterations, int warmup)
{
    if (strcmp(what, "latency") == 0)
        latency(bytes, iterations, warmup, ping_pong);
    else if (strcmp(what, "allreduce") == 0)
        all_reduce(bytes, iterations, warmup);
    else
        fail("%s is not measured here", what);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    find_peer();
    follow_orders(obey);
    brv_group_free(group);
    return 0;
}
