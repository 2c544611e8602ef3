/* Streams: windows of messages between the two ranks of a pair, in one direction or both, and their rate. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { DATA = 1, ACKNOWLEDGEMENT = 2 };

struct stream {
    const struct pair *pair;
    const struct type *type;
    size_t n, bytes;
    int crosses;
    long window, sources, places;
    char *sent, *received;
    brv_request **sends, **receives;
};

static int sends(const struct stream *stream)
{
    return stream->crosses || stream->pair->is_first;
}

static int receives(const struct stream *stream)
{
    return stream->crosses || !stream->pair->is_first;
}

static void start_receive(struct stream *stream, long i)
{
    char *place = stream->received + (size_t)(i % stream->places) * stream->bytes;

    MUST(brv_irecv(job.group, place, stream->n, stream->type->type, stream->pair->peer, DATA,
                   &stream->receives[i], NULL));
}

static void start_send(struct stream *stream, long i)
{
    const char *source = stream->sent + (size_t)(i % stream->sources) * stream->bytes;

    MUST(brv_isend(job.group, source, stream->n, stream->type->type, stream->pair->peer, DATA,
                   &stream->sends[i], NULL));
}

static void wait_for(brv_request *request)
{
    MUST(brv_request_wait(request, BRV_FOREVER));
    brv_request_free(request);
}

/* The messages of a window; those of one direction are acknowledged. */
static void pass_window(struct stream *stream)
{
    char byte = 0;
    long i;

    for (i = 0; receives(stream) && i < stream->places; i++)
        start_receive(stream, i);
    for (i = 0; sends(stream) && i < stream->window; i++)
        start_send(stream, i);
    for (i = 0; receives(stream) && i < stream->window; i++) {
        wait_for(stream->receives[i]);
        if (i + stream->places < stream->window)
            start_receive(stream, i + stream->places);
    }
    if (sends(stream))
        MUST(brv_request_wait_all(stream->sends, (size_t)stream->window, BRV_FOREVER));
    for (i = 0; sends(stream) && i < stream->window; i++)
        brv_request_free(stream->sends[i]);
    if (stream->crosses)
        return;
    if (stream->pair->is_first)
        MUST(brv_recv(job.group, &byte, 1, BRV_U8, stream->pair->peer, ACKNOWLEDGEMENT, NULL, NULL));
    else
        MUST(brv_send(job.group, &byte, 1, BRV_U8, stream->pair->peer, ACKNOWLEDGEMENT, NULL));
}

/* Before a window that is checked. */
static void fill_window(struct stream *stream, long iteration)
{
    long i;

    for (i = 0; i < options.checked_warmup; i++)
        pass_window(stream);
    for (i = 0; i < stream->sources; i++)
        fill(stream->type, stream->sent + (size_t)i * stream->bytes, 0, stream->n, mark_of(job.rank, 0),
             iteration);
    for (i = 0; i < stream->places; i++)
        fill(stream->type, stream->received + (size_t)i * stream->bytes, 0, stream->n, mark_of(job.rank, 0),
             iteration);
}

static size_t check_window(const struct stream *stream, long iteration)
{
    size_t wrong = 0;
    long i;

    for (i = 0; receives(stream) && i < stream->places; i++)
        wrong += count_wrong(stream->type, stream->received + (size_t)i * stream->bytes, 0, stream->n, 1,
                             mark_of(stream->pair->peer, 0), iteration);
    return wrong;
}

/* The time of each window, in samples. Returns how many elements are wrong. */
static size_t measure_windows(struct stream *stream, long warmup, long iterations, double *samples)
{
    size_t wrong = 0;
    long i;

    for (i = 0; i < warmup + iterations; i++) {
        double begun;

        if (options.checks)
            fill_window(stream, i);
        begun = now();
        pass_window(stream);
        if (i >= warmup)
            samples[i - warmup] = now() - begun;
        if (options.checks)
            wrong += check_window(stream, i);
    }
    return wrong;
}

static void open_stream(struct stream *stream, const struct pair *pair, const struct type *type, size_t bytes)
{
    stream->pair = pair;
    stream->type = type;
    stream->n = bytes / type->size;
    stream->bytes = stream->n * type->size;
    stream->sources = options.has_many_buffers ? stream->window : 1;
    stream->places = places_for(bytes, stream->window);
    stream->sent = memory_of((size_t)stream->sources * bytes);
    stream->received = memory_of((size_t)stream->places * bytes);
    stream->sends = memory_of((size_t)stream->window * sizeof *stream->sends);
    stream->receives = memory_of((size_t)stream->window * sizeof *stream->receives);
}

static void close_stream(struct stream *stream)
{
    free(stream->sent);
    free(stream->received);
    free(stream->sends);
    free(stream->receives);
}

/* What one size has shown. */
struct figures {
    double messages; /* a second, of all pairs */
    size_t wrong;
    double *samples; /* of windows, in microseconds */
    long iterations;
};

static struct figures measure_stream(struct stream *stream, const struct pair *pair, const struct type *type,
                                     size_t bytes)
{
    struct figures figures = {0, 0, NULL, count_for(&options.iterations, bytes)};
    double directions = stream->crosses ? 2 : 1, mean = 0;

    open_stream(stream, pair, type, bytes);
    figures.samples = memory_of((size_t)figures.iterations * sizeof *figures.samples);
    MUST(brv_barrier(job.group, NULL));
    if (pair->peer >= 0)
        figures.wrong = measure_windows(stream, count_for(&options.warmup, bytes), figures.iterations,
                                        figures.samples);
    MUST(brv_barrier(job.group, NULL));
    if (pair->peer >= 0 && pair->is_first)
        mean = mean_of(figures.samples, figures.iterations);
    mean = sum_of(mean) / (double)pair->count;
    figures.messages = directions * (double)stream->window * (double)pair->count / mean * 1e6;
    if (options.checks)
        figures.wrong = wrong_everywhere(figures.wrong, bytes);
    close_stream(stream);
    return figures;
}

static size_t measure_bandwidth(const struct pair *pair, const struct type *type, size_t bytes, int crosses)
{
    struct stream stream = {.crosses = crosses, .window = options.window};
    struct figures figures = measure_stream(&stream, pair, type, bytes);
    struct row row = {{NULL}, {""}, 0};

    add_real(&row, "Bandwidth (MB/s)", figures.messages * (double)stream.bytes / 1e6);
    if (options.checks)
        add_validation(&row, figures.wrong);
    /* Bytes in a microsecond are MB/s. */
    add_percentiles(&row, figures.samples, figures.iterations, "Tail BW(MB/s)",
                    (crosses ? 2.0 : 1.0) * (double)stream.window * (double)stream.bytes);
    print_row(&row, 1, bytes);
    free(figures.samples);
    return figures.wrong;
}

/* ---- Rates --------------------------------------------------------------------------------------------- */

static const struct {
    long window;
    const char *name;
} WINDOWS[] = {{8, "8"}, {16, "16"}, {32, "32"}, {64, "64"}, {128, "128"}};
enum { WINDOW_COUNT = sizeof WINDOWS / sizeof *WINDOWS, LARGEST_WINDOW = 128, MOST_SIZES = 64 };

/* The rates of one size, by window. */
static struct {
    size_t bytes;
    double by_window[WINDOW_COUNT];
} rates[MOST_SIZES];
static int rate_count;

static size_t measure_rate(const struct pair *pair, const struct type *type, size_t bytes)
{
    struct stream stream = {.window = options.window};
    struct figures figures = measure_stream(&stream, pair, type, bytes);
    struct row row = {{NULL}, {""}, 0};

    add_real(&row, "MB/s", figures.messages * (double)stream.bytes / 1e6);
    if (options.has_rate)
        add_real(&row, "Messages/s", figures.messages);
    if (options.checks)
        add_validation(&row, figures.wrong);
    print_row(&row, 1, bytes);
    free(figures.samples);
    return figures.wrong;
}

/* One size with each window: bandwidths are printed, rates kept. */
static size_t measure_all_windows(const struct pair *pair, const struct type *type, size_t bytes)
{
    struct row row = {{NULL}, {""}, 0};
    size_t wrong = 0;
    int i;

    for (i = 0; i < WINDOW_COUNT; i++) {
        struct stream stream = {.window = WINDOWS[i].window};
        struct figures figures = measure_stream(&stream, pair, type, bytes);

        add_real(&row, WINDOWS[i].name, figures.messages * (double)stream.bytes / 1e6);
        rates[rate_count].by_window[i] = figures.messages;
        wrong += figures.wrong;
        free(figures.samples);
    }
    if (options.checks)
        add_validation(&row, wrong);
    print_row(&row, 1, bytes);
    rates[rate_count++].bytes = bytes;
    return wrong;
}

static void print_rates(void)
{
    int size, i;

    if (job.rank == 0)
        printf("\n# Message Rate Profile\n");
    for (size = 0; size < rate_count; size++) {
        struct row row = {{NULL}, {""}, 0};

        for (i = 0; i < WINDOW_COUNT; i++)
            add_real(&row, WINDOWS[i].name, rates[size].by_window[i]);
        print_row(&row, 1, rates[size].bytes);
    }
    end_table();
    rate_count = 0;
}

/* ---- Programs ------------------------------------------------------------------------------------------ */

/* Memory of the longest messages, for each byte of one: what is sent, and what is received. */
static size_t memory(long window, int crosses)
{
    size_t sources = options.has_many_buffers ? (size_t)window : 1;
    size_t places = options.has_many_buffers || window < FEWEST_PLACES ? (size_t)window : FEWEST_PLACES;

    return crosses || sources < places ? sources + places : sources;
}

static size_t measure_one_way(const struct pair *pair, const struct type *type, size_t bytes)
{
    return measure_bandwidth(pair, type, bytes, 0);
}

static size_t measure_both_ways(const struct pair *pair, const struct type *type, size_t bytes)
{
    return measure_bandwidth(pair, type, bytes, 1);
}

int run_stream(const struct program *program)
{
    struct pair pair;

    return is_only_pair(&pair) ? run_pairs(program, &pair, "", memory(options.window, 0), measure_one_way)
                               : EXIT_FAILURE;
}

int run_crossing_streams(const struct program *program)
{
    struct pair pair;

    return is_only_pair(&pair) ? run_pairs(program, &pair, "", memory(options.window, 1), measure_both_ways)
                               : EXIT_FAILURE;
}

static int run_windows(const struct program *program, const struct pair *pair)
{
    size_t wrong = 0;
    int i;

    for (i = 0; i < options.type_count && wrong == 0; i++) {
        print_title(program, options.types[i]);
        if (job.rank == 0)
            printf("# [ pairs: %ld ] [ window size: varied ]\n\n# Uni-directional Bandwidth (MB/sec)\n",
                   pair->count);
        wrong = measure_sizes_of_pair(pair, options.types[i], memory(LARGEST_WINDOW, 0), measure_all_windows);
        end_table();
        if (options.has_rate)
            print_rates();
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_rates(const struct program *program)
{
    struct pair pair;
    char note[80];

    if (!is_among_pairs(&pair, options.pairs))
        return EXIT_FAILURE;
    if (options.varies_window)
        return run_windows(program, &pair);
    snprintf(note, sizeof note, "# [ pairs: %ld ] [ window size: %ld ]\n", pair.count, options.window);
    return run_pairs(program, &pair, note, memory(options.window, 0), measure_rate);
}
