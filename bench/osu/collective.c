/* The loops around collectives: a blocking call, and a started one behind which the rank computes. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

/* The parts of a call, in microseconds. */
struct parts {
    double start, compute, tests, wait;
};

/* A subject at one size. */
struct measured {
    const struct kind *kind;
    void *work;
    long iterations, warmup;
    double *samples; /* of each iteration, in microseconds */
    size_t wrong;
};

static double total(const struct parts *parts)
{
    return parts->start + parts->compute + parts->tests + parts->wait;
}

static void barrier(void)
{
    MUST(brv_barrier(job.group, NULL));
}

/* ---- One call ------------------------------------------------------------------------------------------ */

/* Multiplies until so many microseconds have passed. */
static void multiply_for(double lasting)
{
    static volatile double product = 1;
    double begun = now();
    int i;

    while (now() - begun < lasting)
        for (i = 0; i < 200; i++)
            product = product * 1.0000001;
}

/* Computes for so long, with the tests spread over it, which are not counted. */
static void compute(double lasting, brv_request *request, struct parts *parts)
{
    double begun = now();
    long i;

    for (i = 0; i < options.tests; i++) {
        double tested;

        multiply_for(lasting / (double)(options.tests + 1));
        tested = now();
        /* Whether the call has ended does not matter: the wait follows. */
        (void)brv_request_test(request);
        parts->tests += now() - tested;
    }
    multiply_for(lasting / (double)(options.tests + 1));
    parts->compute = now() - begun - parts->tests;
}

/* A call that waits. */
static struct parts wait_for_call(const struct measured *measured)
{
    struct parts parts = {0, 0, 0, 0};
    double begun = now();

    MUST(measured->kind->call(measured->work, NULL));
    parts.wait = now() - begun;
    return parts;
}

/* A call that is started and, after computing, waited for. */
static struct parts start_and_wait(const struct measured *measured, double computing)
{
    struct parts parts = {0, 0, 0, 0};
    brv_request *request = NULL;
    double begun = now(), started, waited;

    MUST(measured->kind->call(measured->work, &request));
    started = now();
    parts.start = started - begun;
    if (computing > 0)
        compute(computing, request, &parts);
    waited = now();
    MUST(brv_request_wait(request, BRV_FOREVER));
    parts.wait = now() - waited;
    brv_request_free(request);
    return parts;
}

/* What is done before a checked call: calls that fill the caches again, and new contents. */
static void prepare_check(const struct measured *measured, long iteration)
{
    long i;

    for (i = 0; i < options.checked_warmup; i++) {
        MUST(measured->kind->call(measured->work, NULL));
        measured->kind->prepare(measured->work, iteration);
    }
    measured->kind->fill(measured->work, iteration);
    barrier();
}

/* All iterations; the means of this rank. A barrier follows each call, outside the clock. */
static struct parts repeat(struct measured *measured, int starts, double computing)
{
    struct parts mean = {0, 0, 0, 0}, parts;
    double count = (double)measured->iterations;
    long i;

    barrier();
    for (i = 0; i < measured->warmup + measured->iterations; i++) {
        measured->kind->prepare(measured->work, i);
        if (options.checks)
            prepare_check(measured, i);
        parts = starts ? start_and_wait(measured, computing) : wait_for_call(measured);
        barrier();
        if (options.checks)
            measured->wrong += measured->kind->check(measured->work, i);
        if (i < measured->warmup)
            continue;
        measured->samples[i - measured->warmup] = total(&parts);
        mean.start += parts.start / count;
        mean.compute += parts.compute / count;
        mean.tests += parts.tests / count;
        mean.wait += parts.wait / count;
    }
    return mean;
}

/* ---- One row ------------------------------------------------------------------------------------------- */

/* Percentiles of the calls of all ranks. */
static void add_tails(struct row *row, const struct measured *measured)
{
    size_t n = (size_t)measured->iterations;
    double *all = memory_of(n * (size_t)job.size * sizeof *all);

    MUST(brv_gather(job.group, measured->samples, all, n, BRV_F64, 0, NULL));
    if (job.rank == 0)
        add_percentiles(row, all, measured->iterations * job.size, "Tail Lat(us)", 0);
    free(all);
}

static void measure_blocking(struct measured *measured, struct row *row)
{
    struct parts parts = repeat(measured, 0, 0);
    double own = total(&parts), mean = sum_of(own) / job.size;
    double least = least_of(own), largest = largest_of(own);

    add_real(row, "Avg Latency(us)", mean);
    if (options.is_full) {
        add_real(row, "Min Latency(us)", least);
        add_real(row, "Max Latency(us)", largest);
        add_whole(row, "Iterations", measured->iterations);
    }
}

static void measure_overlap(struct measured *measured, struct row *row)
{
    struct parts alone = repeat(measured, 1, 0);
    double own = total(&alone);
    struct parts parts = repeat(measured, 1, own);
    double pure = sum_of(own) / job.size, least = least_of(own), largest = largest_of(own);
    double overall = sum_of(total(&parts)) / job.size, computing = sum_of(parts.compute) / job.size;
    double start = sum_of(parts.start) / job.size, tests = sum_of(parts.tests) / job.size;
    double wait = sum_of(parts.wait) / job.size;
    double overlap = 100 - (overall - computing) / pure * 100;

    add_real(row, "Overall(us)", overall);
    add_real(row, "Compute(us)", computing);
    if (options.is_full) {
        add_real(row, "Coll. Init(us)", start);
        add_real(row, "MPI_Test(us)", tests);
        add_real(row, "MPI_Wait(us)", wait);
    }
    add_real(row, "Pure Comm.(us)", pure);
    if (options.is_full) {
        add_real(row, "Min Comm.(us)", least);
        add_real(row, "Max Comm.(us)", largest);
    }
    add_real(row, "Overlap(%)", overlap > 0 ? overlap : 0);
}

/* Returns the number of wrong elements; 0 if the size has none. */
static size_t measure(const struct program *program, const struct type *type, size_t bytes)
{
    const struct subject *subject = program->subject;
    struct measured measured = {subject->kind, subject->kind->open(subject, type, bytes),
                                count_for(&options.iterations, bytes), count_for(&options.warmup, bytes),
                                NULL, 0};
    struct row row = {{NULL}, {""}, 0};
    size_t wrong = 0;

    if (measured.work == NULL)
        return 0;
    measured.samples = memory_of((size_t)measured.iterations * sizeof *measured.samples);
    (program->starts ? measure_overlap : measure_blocking)(&measured, &row);
    if (options.checks) {
        wrong = wrong_everywhere(measured.wrong, bytes);
        add_validation(&row, wrong);
    }
    if (options.percentile_count > 0)
        add_tails(&row, &measured);
    print_row(&row, subject->has_size, bytes);
    free(measured.samples);
    subject->kind->close(measured.work);
    return wrong;
}

/* ---- All sizes ----------------------------------------------------------------------------------------- */

static size_t measure_sizes(const struct program *program, const struct type *type)
{
    const struct subject *subject = program->subject;
    size_t bytes, wrong = 0;

    if (!subject->has_size)
        return measure(program, type, 0);
    for (bytes = options.smallest; bytes <= options.largest && wrong == 0; bytes = next_size(bytes)) {
        if (is_too_large(subject->kind->needs(subject, bytes), bytes))
            break;
        wrong = measure(program, type, bytes);
    }
    return wrong;
}

int run_collective(const struct program *program)
{
    size_t wrong = 0;
    int i;

    for (i = 0; i < options.type_count && wrong == 0; i++) {
        print_title(program, program->subject->has_type ? options.types[i] : NULL);
        if (job.rank == 0 && program->starts)
            printf("# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n");
        wrong = measure_sizes(program, options.types[i]);
        end_table();
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
