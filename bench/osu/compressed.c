/* The compressed averages, with error feedback: gTop-k and low rank. The size is that of the gradient. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct work {
    const struct collective *row;
    size_t n, rows;
    brv_feedback *feedback;
    float *gradient;                 /* the argument */
    float *own;                      /* what each iteration begins with */
    float *residual, *total, *after; /* of checks: own, and over all ranks before and after the call */
};

struct collective {
    brv_status (*call)(const struct work *work, brv_request **request);
};

static brv_status gtopk(const struct work *w, brv_request **request)
{
    return request == NULL
               ? brv_gtopk_average(job.group, w->feedback, w->gradient, w->n, options.density, NULL)
               : brv_igtopk_average(job.group, w->feedback, w->gradient, w->n, options.density, request,
                                    NULL);
}

static brv_status low_rank(const struct work *w, brv_request **request)
{
    size_t cols = w->n / w->rows;

    return request == NULL
               ? brv_low_rank_average(job.group, w->feedback, w->gradient, w->rows, cols, options.factors,
                                      NULL)
               : brv_ilow_rank_average(job.group, w->feedback, w->gradient, w->rows, cols, options.factors,
                                       request, NULL);
}

/* Two of the work, three of checks. */
static size_t needs(const struct subject *subject, size_t bytes)
{
    (void)subject;
    return bytes * (options.checks ? 5 : 2);
}

static void close_work(void *state)
{
    struct work *work = state;

    brv_feedback_free(work->feedback);
    free(work->gradient);
    free(work->own);
    free(work->residual);
    free(work->total);
    free(work->after);
    free(work);
}

float gradient_element(int32_t rank, size_t index)
{
    uint64_t x = ((uint64_t)rank << 40) + (uint64_t)index;

    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return (float)((double)(x >> 32) / 2147483648.0 - 1);
}

static void *open_work(const struct subject *subject, const struct type *type, size_t bytes)
{
    size_t n = bytes / sizeof(float), i, checked = options.checks ? bytes : 0;
    struct work *work;

    (void)type;
    if (n == 0)
        return NULL;
    work = memory_of(sizeof *work);
    work->row = subject->row;
    work->n = n;
    /* The matrix is as near to a square as its elements allow. */
    for (work->rows = (size_t)sqrt((double)n); n % work->rows != 0;)
        work->rows--;
    work->gradient = memory_of(bytes);
    work->own = memory_of(bytes);
    work->residual = memory_of(checked);
    work->total = memory_of(checked);
    work->after = memory_of(checked);
    for (i = 0; i < n; i++)
        work->own[i] = gradient_element(job.rank, i);
    MUST(brv_feedback_new(&work->feedback));
    return work;
}

/* The average took the place of the gradient. */
static void prepare(void *state, long iteration)
{
    struct work *work = state;

    (void)iteration;
    memcpy(work->gradient, work->own, work->n * sizeof(float));
}

/* The sum over all ranks of what has not been sent. */
static void sum_residuals(struct work *work, float *sum)
{
    /* A feedback that was not used has none. */
    if (brv_feedback_residual(work->feedback, work->residual, work->n) != BRV_OK)
        memset(work->residual, 0, work->n * sizeof(float));
    MUST(brv_all_reduce(job.group, work->residual, sum, work->n, BRV_F32, BRV_SUM, NULL));
}

/* Notes what goes into the call: gradients and residuals of all ranks. */
static void fill_work(void *state, long iteration)
{
    struct work *work = state;
    size_t i;

    prepare(work, iteration);
    sum_residuals(work, work->total);
    MUST(brv_all_reduce(job.group, work->own, work->after, work->n, BRV_F32, BRV_SUM, NULL));
    for (i = 0; i < work->n; i++)
        work->total[i] += work->after[i];
}

/* Nothing is lost: the average times the ranks, and the residuals, are what went in. */
static size_t check(void *state, long iteration)
{
    struct work *work = state;

    sum_residuals(work, work->after);
    return count_lost(work->total, work->gradient, job.size, work->after, work->n, iteration);
}

static brv_status call(void *state, brv_request **request)
{
    struct work *work = state;

    return work->row->call(work, request);
}

static const struct kind KIND = {needs, open_work, prepare, fill_work, call, check, close_work};

const struct subject COMPRESSED[] = {
    {"gtopk_average", "gTop-k Average Latency", "e", &KIND, 1, 0, &(const struct collective){gtopk}},
    {"low_rank_average", "Low-rank Average Latency", "n", &KIND, 1, 0, &(const struct collective){low_rank}},
    {NULL, NULL, NULL, NULL, 0, 0, NULL},
};
