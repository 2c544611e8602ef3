/* Puts and gets: rank 0, or both ranks, access memory that the other has registered. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 1, TURN = 2 };

static const struct type BYTE = {"MPI_CHAR", BRV_I8, 1};

/* How memory is accessed. */
enum access { PUT, GET };

struct window {
    const struct pair *pair;
    enum access access;
    int crosses;
    long length;           /* operations before a flush */
    char *local, *exposed; /* what is put from, or got into; what the peer accesses */
    brv_memory *memory;
    brv_remote_memory *remote;
};

static int accesses(const struct window *window)
{
    return window->crosses || window->pair->is_first;
}

static int is_accessed(const struct window *window)
{
    return window->crosses || !window->pair->is_first;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static size_t longest(const struct window *window)
{
    size_t bytes, most = 1;

    for (bytes = options.smallest; bytes <= options.largest; bytes = next_size(bytes))
        if ((size_t)places_for(bytes, window->length) * bytes > most)
            most = (size_t)places_for(bytes, window->length) * bytes;
    return most;
}

/* Registers this rank's memory and opens the peer's. */
static void open_window(struct window *window)
{
    size_t bytes = longest(window);
    brv_memory_key own, theirs;

    window->local = memory_of(bytes);
    window->exposed = memory_of(bytes);
    /* What is got; only the peer may write the memory from now on. */
    fill(&BYTE, window->exposed, 0, bytes, mark_of(job.rank, 0), 0);
    MUST(brv_memory_register(job.group, window->exposed, bytes, &window->memory, &own));
    MUST(brv_send_recv(job.group, &own, sizeof own, window->pair->peer, KEY, &theirs, sizeof theirs,
                       window->pair->peer, KEY, BRV_U8, NULL, NULL));
    MUST(brv_remote_memory_open(job.group, window->pair->peer, &theirs, &window->remote));
}

static void close_window(struct window *window)
{
    MUST(brv_barrier(job.group, NULL));
    brv_remote_memory_free(window->remote);
    /* Hardware may still write memory that is pending, until the process ends. */
    if (brv_memory_free(window->memory) == BRV_OK)
        free(window->exposed);
    free(window->local);
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

static void pass_window(struct window *window, size_t bytes)
{
    long places = places_for(bytes, window->length), i;

    for (i = 0; i < window->length; i++) {
        size_t offset = (size_t)(i % places) * bytes;

        if (window->access == PUT)
            MUST(brv_put(job.group, window->local + offset, bytes, window->remote, offset, NULL));
        else
            MUST(brv_get(job.group, window->local + offset, bytes, window->remote, offset, NULL));
    }
    if (window->access == PUT)
        MUST(brv_flush(job.group, window->pair->peer, NULL));
}

/* Waits until the peer is here too, by messages. */
static void meet(const struct window *window)
{
    char own = 0, theirs = 0;

    MUST(brv_send_recv(job.group, &own, 1, window->pair->peer, TURN, &theirs, 1, window->pair->peer, TURN,
                       BRV_U8, NULL, NULL));
}

/* Before a window that is checked. */
static void fill_window(struct window *window, size_t bytes, long iteration)
{
    long places = places_for(bytes, window->length), i;

    for (i = 0; accesses(window) && i < options.checked_warmup; i++)
        pass_window(window, bytes);
    if (window->access == GET)
        memset(window->local, 0xa5, (size_t)places * bytes);
    for (i = 0; window->access == PUT && i < places; i++)
        fill(&BYTE, window->local + (size_t)i * bytes, 0, bytes, mark_of(job.rank, 0), iteration);
    meet(window);
}

static size_t check_window(const struct window *window, size_t bytes, long iteration)
{
    size_t places = (size_t)places_for(bytes, window->length), wrong = 0, i;
    int64_t mark = mark_of(window->pair->peer, 0);

    if (window->access == GET && accesses(window))
        wrong = count_wrong(&BYTE, window->local, 0, places * bytes, 1, mark, 0);
    for (i = 0; window->access == PUT && is_accessed(window) && i < places; i++)
        wrong += count_wrong(&BYTE, window->exposed + i * bytes, 0, bytes, 1, mark, iteration);
    return wrong;
}

/* The time of each window, in samples. Returns how many elements are wrong. */
static size_t measure_windows(struct window *window, size_t bytes, long iterations, double *samples)
{
    long warmup = count_for(&options.warmup, bytes), i;
    size_t wrong = 0;

    for (i = 0; i < warmup + iterations && (accesses(window) || options.checks); i++) {
        double begun;

        if (options.checks)
            fill_window(window, bytes, i);
        begun = now();
        if (accesses(window))
            pass_window(window, bytes);
        if (i >= warmup)
            samples[i - warmup] = now() - begun;
        if (options.checks) {
            /* The puts are there. */
            meet(window);
            wrong += check_window(window, bytes, i);
            meet(window);
        }
    }
    return wrong;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static size_t measure(struct window *window, size_t bytes, int is_latency)
{
    long iterations = count_for(&options.iterations, bytes);
    double *samples = memory_of((size_t)iterations * sizeof *samples);
    double total = (window->crosses ? 2.0 : 1.0) * (double)window->length * (double)bytes;
    struct row row = {{NULL}, {""}, 0};
    size_t wrong;

    MUST(brv_barrier(job.group, NULL));
    wrong = measure_windows(window, bytes, iterations, samples);
    /* A target is in this call meanwhile, and makes progress. */
    MUST(brv_barrier(job.group, NULL));
    if (is_latency)
        add_real(&row, "Avg Latency(us)", mean_of(samples, iterations));
    else
        /* Bytes in a microsecond are MB/s. */
        add_real(&row, "Bandwidth (MB/s)", total / mean_of(samples, iterations));
    if (options.checks) {
        wrong = wrong_everywhere(wrong, bytes);
        add_validation(&row, wrong);
    }
    add_percentiles(&row, samples, iterations, is_latency ? "Tail Lat(us)" : "Tail BW(MB/s)",
                    is_latency ? 0 : total);
    print_row(&row, 1, bytes);
    free(samples);
    return wrong;
}

static int run(const struct program *program, enum access access, int crosses, int is_latency)
{
    struct window window = {.access = access, .crosses = crosses, .length = is_latency ? 1 : options.window};
    struct pair pair;
    size_t bytes, wrong = 0, largest = 0;

    if (!is_only_pair(&pair))
        return EXIT_FAILURE;
    window.pair = &pair;
    print_title(program, NULL);
    if (job.rank == 0)
        printf("# Window creation: brv_memory_register\n# Synchronization: %s\n",
               access == PUT ? "brv_flush" : "brv_get");
    for (bytes = options.smallest; bytes <= options.largest; largest = bytes, bytes = next_size(bytes))
        if (is_too_large(2 * (size_t)places_for(bytes, window.length) * bytes, bytes))
            break;
    options.largest = largest;
    open_window(&window);
    for (bytes = options.smallest; bytes <= options.largest && wrong == 0; bytes = next_size(bytes))
        wrong = measure(&window, bytes, is_latency);
    close_window(&window);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_put_latency(const struct program *program)
{
    return run(program, PUT, 0, 1);
}

int run_get_latency(const struct program *program)
{
    return run(program, GET, 0, 1);
}

int run_put_stream(const struct program *program)
{
    return run(program, PUT, 0, 0);
}

int run_get_stream(const struct program *program)
{
    return run(program, GET, 0, 0);
}

int run_crossing_puts(const struct program *program)
{
    return run(program, PUT, 1, 0);
}
