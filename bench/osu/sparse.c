/* The compressed collectives without error feedback: of sparse vectors, of values in few bits, of factors.
 * The size is that of the dense vector. Entries are selected outside the clock. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a call is given, and where it leaves its result. */
enum result {
    SUM,       /* entries; a sparse vector */
    SHARE,     /* entries; a sparse vector, of which each rank has its indices */
    EACH,      /* entries; a sparse vector of each rank */
    HOST_SUM,  /* a vector, of which hosts select; a sparse one, and what is left */
    DRAWN,     /* a vector; a sparse one of the places that are drawn */
    BLOCK_SUM, /* a vector that is 0 but for the entries; the sum of all */
    DENSE_SUM, /* a vector; the sum of all, and what rounding takes away */
    SIGNS,     /* a vector; the signs of the majority */
    FACTORS    /* a matrix; the factors of its mean */
};

/* Elements of a block that does not travel if all are 0. */
enum { BLOCK = 256 };

struct work {
    const struct collective *row;
    size_t n, k;
    uint64_t step;
    float *own; /* the vector that is given, or that entries are of */
    /* The entries of this rank. */
    const uint32_t *indices;
    const float *values;
    size_t count;
    brv_sparse *selected, *sum, *kept, **all;
    brv_ok_topk *ok_topk;
    brv_low_rank *low_rank;
    float *out, *rest;            /* a dense result, and what is not in a result */
    float *total, *found, *after; /* of checks: what went in and came out, and rest over all ranks */
};

struct collective {
    enum result result;
    int estimates; /* the library selects the entries of each step */
    brv_status (*call)(const struct work *work, brv_request **request);
};

/* ---- Calls --------------------------------------------------------------------------------------------- */

/* A function that waits if request is NULL, and starts the call if not. */
#define FUNCTION(name, ...)                                                                                  \
    static brv_status name(const struct work *w, brv_request **request)                                      \
    {                                                                                                        \
        return request == NULL ? brv_##name(job.group, __VA_ARGS__, NULL)                                    \
                               : brv_i##name(job.group, __VA_ARGS__, request, NULL);                         \
    }

#define ENTRIES w->indices, w->values, w->count, w->n

FUNCTION(topk_all_reduce, ENTRIES, w->k, BRV_VALUES_F32, w->sum, w->kept)
FUNCTION(gtopk_all_reduce, ENTRIES, w->k, BRV_PUT_BACK_CONSERVING, BRV_VALUES_F32, w->sum, w->kept)
FUNCTION(ok_topk_all_reduce, ENTRIES, w->ok_topk, BRV_VALUES_F32, w->sum, w->kept)
FUNCTION(sparse_all_gather, ENTRIES, w->k, BRV_VALUES_F32, w->all)
FUNCTION(sparse_reduce_scatter, ENTRIES, w->k, BRV_VALUES_F32, w->sum, w->kept)
FUNCTION(hierarchical_all_reduce, w->own, w->rest, w->n, w->k, BRV_LEADER_SUM_GTOPK,
         BRV_PUT_BACK_CONSERVING, BRV_VALUES_F32, w->sum)
FUNCTION(random_k_all_reduce, w->own, w->n, w->k, BRV_DRAW_SCATTERED, 1, w->step, w->sum)
FUNCTION(block_all_reduce, w->own, w->out, w->n, BLOCK)
FUNCTION(quantised_all_reduce, w->own, w->out, w->rest, w->n, BRV_VALUES_BF16)
FUNCTION(vote_all_reduce, w->own, w->out, w->n)
FUNCTION(low_rank_all_reduce, w->low_rank, (const float *const *)&w->own, 1)

/* ---- Memory -------------------------------------------------------------------------------------------- */

static size_t kept_of(size_t n)
{
    size_t k = (size_t)ceil(options.density * (double)n);

    return k == 0 ? 1 : k;
}

/* Dense vectors; and sparse ones, of each rank and of this one. */
static size_t needs(const struct subject *subject, size_t bytes)
{
    size_t entries = subject->row->result >= BLOCK_SUM ? 0 : 2 * kept_of(bytes / sizeof(float)) + 1;

    return bytes * (3 + (options.checks ? 3 : 0)) +
           entries * (sizeof(uint32_t) + sizeof(float)) * ((size_t)job.size + 3);
}

static void close_work(void *state)
{
    struct work *work = state;
    int32_t rank;

    for (rank = 0; rank < job.size; rank++)
        brv_sparse_free(work->all[rank]);
    free(work->all);
    brv_sparse_free(work->selected);
    brv_sparse_free(work->sum);
    brv_sparse_free(work->kept);
    brv_ok_topk_free(work->ok_topk);
    brv_low_rank_free(work->low_rank);
    free(work->own);
    free(work->out);
    free(work->rest);
    free(work->total);
    free(work->found);
    free(work->after);
    free(work);
}

/* About equally many entries in each part of the vector, at places that differ from rank to rank. */
static void select_places(struct work *work)
{
    size_t stride = work->n / work->k, i;
    uint32_t *indices = memory_of(work->k * sizeof *indices);
    float *values = memory_of(work->k * sizeof *values);

    for (i = 0; i < work->k; i++) {
        size_t place = i * stride + (i + 7 * (size_t)job.rank) % stride;

        indices[i] = (uint32_t)place;
        values[i] = work->own[place];
    }
    MUST(brv_sparse_set(work->selected, indices, values, work->k, work->n));
    free(indices);
    free(values);
}

/* Takes the entries of the next call. */
static void prepare(void *state, long iteration)
{
    struct work *work = state;

    work->step = (uint64_t)iteration;
    if (work->row->estimates)
        MUST(brv_ok_topk_select(work->ok_topk, work->own, work->n, work->selected));
    MUST(brv_sparse_view(work->selected, &work->indices, &work->values, &work->count));
}

/* A matrix that is as near to a square as its elements allow. */
static void open_matrix(struct work *work)
{
    size_t rows = (size_t)sqrt((double)work->n);

    while (work->n % rows != 0)
        rows--;
    MUST(brv_low_rank_new(&work->low_rank));
    MUST(brv_low_rank_add(work->low_rank, rows, work->n / rows, options.factors, 1));
}

static void *open_work(const struct subject *subject, const struct type *type, size_t bytes)
{
    size_t n = bytes / sizeof(float), i, checked = options.checks ? bytes : 0;
    struct work *work;
    int32_t rank;

    (void)type;
    if (n == 0)
        return NULL;
    work = memory_of(sizeof *work);
    work->row = subject->row;
    work->n = n;
    work->k = kept_of(n);
    work->own = memory_of(bytes);
    for (i = 0; i < n; i++)
        work->own[i] = gradient_element(job.rank, i);
    MUST(brv_sparse_new(&work->selected));
    MUST(brv_sparse_new(&work->sum));
    MUST(brv_sparse_new(&work->kept));
    work->all = memory_of((size_t)job.size * sizeof *work->all);
    for (rank = 0; rank < job.size; rank++)
        MUST(brv_sparse_new(&work->all[rank]));
    if (work->row->estimates)
        MUST(brv_ok_topk_new(job.group, n, work->k, &work->ok_topk));
    if (work->row->result == FACTORS)
        open_matrix(work);
    work->out = memory_of(bytes);
    work->rest = memory_of(bytes);
    work->total = memory_of(checked);
    work->found = memory_of(checked);
    work->after = memory_of(checked);
    select_places(work);
    if (work->row->result == BLOCK_SUM) {
        memset(work->own, 0, bytes);
        MUST(brv_sparse_add_to(work->selected, 1, work->own, n));
    }
    return work;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* Adds the entries of a vector, which has no length if no call has set it. */
static void add_entries(const struct work *work, const brv_sparse *entries, float *dense)
{
    size_t count;

    MUST(brv_sparse_count(entries, &count, NULL));
    if (count > 0)
        MUST(brv_sparse_add_to(entries, 1, dense, work->n));
}

static void take_signs(float *values, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        values[i] = (float)((values[i] > 0) - (values[i] < 0));
}

/* Notes what goes into the call, of all ranks. */
static void fill_work(void *state, long iteration)
{
    struct work *work = state;
    enum result result = work->row->result;
    size_t bytes = work->n * sizeof(float);

    prepare(work, iteration);
    if (result >= HOST_SUM)
        memcpy(work->found, work->own, bytes);
    else {
        memset(work->found, 0, bytes);
        add_entries(work, work->selected, work->found);
    }
    if (result == SIGNS)
        take_signs(work->found, work->n);
    MUST(brv_all_reduce(job.group, work->found, work->total, work->n, BRV_F32, BRV_SUM, NULL));
    if (result == SIGNS)
        take_signs(work->total, work->n);
}

/* Writes the result to found, and what this rank keeps to rest. */
static void collect(struct work *work)
{
    enum result result = work->row->result;
    size_t bytes = work->n * sizeof(float), i;
    int32_t rank;

    if (result == FACTORS) {
        MUST(brv_low_rank_mean(work->low_rank, 0, work->found, work->n));
        MUST(brv_low_rank_own(work->low_rank, 0, work->rest, work->n));
        for (i = 0; i < work->n; i++)
            work->rest[i] = work->own[i] - work->rest[i];
        return;
    }
    if (result >= BLOCK_SUM) {
        memcpy(work->found, work->out, bytes);
        return;
    }
    memset(work->found, 0, bytes);
    add_entries(work, work->sum, work->found);
    for (rank = 0; rank < job.size; rank++)
        add_entries(work, work->all[rank], work->found);
    if (result == SHARE)
        MUST(brv_all_reduce(job.group, work->found, work->found, work->n, BRV_F32, BRV_SUM, NULL));
    if (result == DRAWN) {
        memcpy(work->rest, work->own, bytes);
        MUST(brv_sparse_clear_in(work->sum, work->rest, work->n));
    } else if (result != HOST_SUM) {
        memset(work->rest, 0, bytes);
        add_entries(work, work->kept, work->rest);
    }
}

/* Nothing is lost: the result, and what ranks keep, is what went in. */
static size_t check(void *state, long iteration)
{
    struct work *work = state;

    collect(work);
    MUST(brv_all_reduce(job.group, work->rest, work->after, work->n, BRV_F32, BRV_SUM, NULL));
    return count_lost(work->total, work->found, work->row->result == FACTORS ? job.size : 1, work->after,
                      work->n, iteration);
}

static brv_status call(void *state, brv_request **request)
{
    struct work *work = state;

    return work->row->call(work, request);
}

/* ---- Programs ------------------------------------------------------------------------------------------ */

static const struct kind KIND = {needs, open_work, prepare, fill_work, call, check, close_work};

/* A program: its name and title, its letters, and what it calls. */
#define PROGRAM(name, title, letters, ...)                                                                   \
    {                                                                                                        \
        name, title " Latency", letters, &KIND, 1, 0, &(const struct collective) { __VA_ARGS__ }             \
    }

const struct subject SPARSE[] = {
    PROGRAM("topk_allreduce", "Top-k Allreduce", "e", SUM, 0, topk_all_reduce),
    PROGRAM("gtopk_allreduce", "gTop-k Allreduce", "e", SUM, 0, gtopk_all_reduce),
    PROGRAM("oktopk_allreduce", "Ok-Topk Allreduce", "e", SUM, 1, ok_topk_all_reduce),
    PROGRAM("sparse_allgather", "Sparse Allgather", "e", EACH, 0, sparse_all_gather),
    PROGRAM("sparse_reduce_scatter", "Sparse Reduce-scatter", "e", SHARE, 0, sparse_reduce_scatter),
    PROGRAM("hierarchical_allreduce", "Hierarchical Allreduce", "e", HOST_SUM, 0, hierarchical_all_reduce),
    PROGRAM("random_k_allreduce", "Random-k Allreduce", "e", DRAWN, 0, random_k_all_reduce),
    PROGRAM("block_allreduce", "Block-sparse Allreduce", "e", BLOCK_SUM, 0, block_all_reduce),
    PROGRAM("quantised_allreduce", "Quantised Allreduce", "", DENSE_SUM, 0, quantised_all_reduce),
    PROGRAM("vote_allreduce", "Vote Allreduce", "", SIGNS, 0, vote_all_reduce),
    PROGRAM("low_rank_allreduce", "Low-rank Allreduce", "n", FACTORS, 0, low_rank_all_reduce),
    {NULL, NULL, NULL, NULL, 0, 0, NULL},
};
