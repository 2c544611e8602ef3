/* Latency: half of a round trip between the two ranks of a pair. */
#include "bench.h"

#include <stdlib.h>

enum { DATA = 1 };

struct ping {
    const struct pair *pair;
    const struct type *type;
    size_t n;
    void *sent, *received;
};

static void ping_pong(const struct ping *ping)
{
    brv_type type = ping->type->type;
    int32_t peer = ping->pair->peer;

    if (!ping->pair->is_first)
        MUST(brv_recv(job.group, ping->received, ping->n, type, peer, DATA, NULL, NULL));
    MUST(brv_send(job.group, ping->sent, ping->n, type, peer, DATA, NULL));
    if (ping->pair->is_first)
        MUST(brv_recv(job.group, ping->received, ping->n, type, peer, DATA, NULL, NULL));
}

/* Half of each round trip, in samples. Returns how many elements are wrong. */
static size_t measure_round_trips(const struct ping *ping, long warmup, long iterations, double *samples)
{
    size_t wrong = 0;
    long i, j;

    for (i = 0; i < warmup + iterations; i++) {
        double begun;

        if (options.checks) {
            fill(ping->type, ping->sent, 0, ping->n, mark_of(job.rank, 0), i);
            fill(ping->type, ping->received, 0, ping->n, mark_of(job.rank, 0), i);
            for (j = 0; j < options.checked_warmup; j++)
                ping_pong(ping);
        }
        begun = now();
        ping_pong(ping);
        if (i >= warmup)
            samples[i - warmup] = (now() - begun) / 2;
        if (options.checks)
            wrong += count_wrong(ping->type, ping->received, 0, ping->n, 1, mark_of(ping->pair->peer, 0), i);
    }
    return wrong;
}

static size_t measure_latency(const struct pair *pair, const struct type *type, size_t bytes)
{
    struct ping ping = {pair, type, bytes / type->size, memory_of(bytes), memory_of(bytes)};
    long iterations = count_for(&options.iterations, bytes);
    double *samples = memory_of((size_t)iterations * sizeof *samples);
    struct row row = {{NULL}, {""}, 0};
    size_t wrong = 0;
    int is_first = pair->peer >= 0 && pair->is_first;

    MUST(brv_barrier(job.group, NULL));
    if (pair->peer >= 0)
        wrong = measure_round_trips(&ping, count_for(&options.warmup, bytes), iterations, samples);
    MUST(brv_barrier(job.group, NULL));
    add_real(&row, "Avg Latency(us)",
             sum_of(is_first ? mean_of(samples, iterations) : 0) / (double)pair->count);
    if (options.checks) {
        wrong = wrong_everywhere(wrong, bytes);
        add_validation(&row, wrong);
    }
    add_percentiles(&row, samples, iterations, "Tail Lat(us)", 0);
    print_row(&row, 1, bytes);
    free(samples);
    free(ping.sent);
    free(ping.received);
    return wrong;
}

int run_latency(const struct program *program)
{
    struct pair pair;

    return is_only_pair(&pair) ? run_pairs(program, &pair, "", 2, measure_latency) : EXIT_FAILURE;
}

/* All pairs at the same time. */
int run_multi_latency(const struct program *program)
{
    struct pair pair;

    return is_among_pairs(&pair, options.pairs) ? run_pairs(program, &pair, "", 2, measure_latency)
                                                : EXIT_FAILURE;
}
