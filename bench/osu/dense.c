/* The dense collectives: how each is called, what memory it works on, and the table of programs. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* What a rank hands in or gets: a vector of the size; its own block; the blocks of all ranks. */
enum shape { NOTHING, VECTOR, BLOCK, BLOCKS };

enum {
    ROOT_GIVES = 1,
    ROOT_GETS = 2,
    SUMS = 4,
    LENGTHS = 8,     /* the function takes a list of lengths */
    SPLIT = 16,      /* the size is that of all blocks together */
    ONE_MEMORY = 32, /* the root's vector is where the others get it */
};

struct work {
    const struct collective *row;
    const struct type *type;
    size_t n, *lengths; /* elements of a vector or block, and of each block */
    size_t start, own;  /* the first element of this rank's block, and how many it has */
    size_t all;         /* elements of all blocks */
    int32_t root;
    char *given, *got;  /* allocated */
    void *in, *out;     /* the arguments */
};

struct collective {
    enum shape gives, gets;
    int traits;
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

FUNCTION(broadcast, w->out, w->n, w->type->type, w->root)
FUNCTION(broadcast_to, w->in, w->out, w->n, w->type->type, w->root)
FUNCTION(reduce, w->in, w->out, w->n, w->type->type, BRV_SUM, w->root)
FUNCTION(all_reduce, w->in, w->out, w->n, w->type->type, BRV_SUM)
FUNCTION(reduce_scatter, w->in, w->out, w->n, w->type->type, BRV_SUM)
FUNCTION(reduce_scatter_v, w->in, w->out, w->lengths, w->type->type, BRV_SUM)
FUNCTION(all_gather, w->in, w->out, w->n, w->type->type)
FUNCTION(all_gather_v, w->in, w->out, w->lengths, w->type->type)
FUNCTION(gather, w->in, w->out, w->n, w->type->type, w->root)
FUNCTION(gather_v, w->in, w->out, w->lengths, w->type->type, w->root)
FUNCTION(scatter, w->in, w->out, w->n, w->type->type, w->root)
FUNCTION(scatter_v, w->in, w->out, w->lengths, w->type->type, w->root)
FUNCTION(all_to_all, w->in, w->out, w->n, w->type->type)
FUNCTION(all_to_all_v, w->in, w->out, w->lengths, w->lengths, w->type->type)

static brv_status barrier(const struct work *w, brv_request **request)
{
    (void)w;
    return request == NULL ? brv_barrier(job.group, NULL) : brv_ibarrier(job.group, request, NULL);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static size_t elements(const struct work *work, enum shape shape)
{
    switch (shape) {
    case VECTOR: return work->n;
    case BLOCK: return work->own;
    case BLOCKS: return work->all;
    default: return 0;
    }
}

static int has(const struct work *work, int trait)
{
    return (work->row->traits & trait) != 0;
}

/* Whether this rank gives, or gets, what has this trait where only the root does. */
static int takes_part(const struct work *work, int trait)
{
    return !has(work, trait) || work->root == job.rank;
}

static size_t needs(const struct subject *subject, size_t bytes)
{
    const struct collective *row = subject->row;
    size_t blocks = bytes * (row->traits & SPLIT ? 1 : (size_t)job.size);

    return (row->gives == BLOCKS ? blocks : bytes) + (row->gets == BLOCKS ? blocks : bytes);
}

static void close_work(void *state)
{
    struct work *work = state;

    free(work->given);
    free(work->got);
    free(work->lengths);
    free(work);
}

/* Blocks of n elements; the first get what remains of a vector that is split. */
static void lay_out_blocks(struct work *work, size_t count)
{
    size_t size = (size_t)job.size, i;
    size_t rest = has(work, SPLIT) && has(work, LENGTHS) ? count % size : 0;

    work->n = has(work, SPLIT) ? count / size : count;
    work->lengths = memory_of(size * sizeof *work->lengths);
    for (i = 0; i < size; i++) {
        work->lengths[i] = work->n + (i < rest);
        if (i < (size_t)job.rank)
            work->start += work->lengths[i];
        work->all += work->lengths[i];
    }
    work->own = work->lengths[job.rank];
}

/* Where a call finds its memory: for this root. */
static void arrange(struct work *work)
{
    enum shape gives = work->row->gives, gets = work->row->gets;
    size_t offset = work->start * work->type->size;
    int is_in_place = options.is_in_place && takes_part(work, ROOT_GIVES | ROOT_GETS);

    work->in = takes_part(work, ROOT_GIVES) ? work->given : NULL;
    work->out = takes_part(work, ROOT_GETS) ? work->got : NULL;
    if (is_in_place && gives == BLOCK && gets == BLOCKS)
        work->in = work->got + offset;
    else if (is_in_place && gives == BLOCKS && gets == BLOCK)
        work->out = work->given + offset;
    else if (is_in_place)
        work->out = work->given;
}

static void *open_work(const struct subject *subject, const struct type *type, size_t bytes)
{
    struct work *work = memory_of(sizeof *work);

    work->row = subject->row;
    work->type = type;
    work->root = options.root;
    lay_out_blocks(work, bytes / type->size);
    /* A size without elements for each rank is left out; a barrier has none. */
    if (work->n == 0 && work->row->gets != NOTHING && !(has(work, LENGTHS) && work->all > 0)) {
        close_work(work);
        return NULL;
    }
    work->given = memory_of(elements(work, work->row->gives) * type->size);
    work->got = memory_of(elements(work, work->row->gets) * type->size);
    arrange(work);
    return work;
}

static void prepare(void *state, long iteration)
{
    struct work *work = state;

    if (options.rotates_root) {
        work->root = (int32_t)(iteration % job.size);
        arrange(work);
    }
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

/* Blocks that differ: each of the rank that it comes from, or goes to. */
static int64_t block_mark(const struct work *work, int32_t from, int32_t to)
{
    return mark_of(from, work->row->gives == BLOCKS && !has(work, SUMS) ? to : 0);
}

static void fill_work(void *state, long iteration)
{
    struct work *work = state;
    size_t given = elements(work, work->row->gives), got = elements(work, work->row->gets), first = 0;
    int32_t other;

    if (work->out != NULL && work->out != work->in)
        memset(work->out, 0xa5, got * work->type->size);
    if (has(work, ONE_MEMORY) && work->root == job.rank)
        fill(work->type, work->out, 0, got, mark_of(job.rank, 0), iteration);
    if (work->in == NULL || given == 0)
        return;
    if (work->row->gives != BLOCKS || has(work, SUMS)) {
        fill(work->type, work->in, 0, given, mark_of(job.rank, 0), iteration);
        return;
    }
    for (other = 0; other < job.size; first += work->lengths[other++])
        fill(work->type, (char *)work->in + first * work->type->size, 0, work->lengths[other],
             block_mark(work, job.rank, other), iteration);
}

static size_t check_sum(const struct work *work, long iteration)
{
    size_t first = work->row->gets == BLOCK ? work->start : 0;
    int64_t marks = 0;
    int32_t rank;

    for (rank = 0; rank < job.size; rank++)
        marks += mark_of(rank, 0);
    return count_wrong(work->type, work->out, first, elements(work, work->row->gets), job.size, marks,
                       iteration);
}

static size_t check(void *state, long iteration)
{
    struct work *work = state;
    size_t wrong = 0, first = 0;
    int32_t other;

    if (work->out == NULL || work->row->gets == NOTHING )
        return 0;
    if (has(work, SUMS))
        return check_sum(work, iteration);
    if (work->row->gets != BLOCKS)
        return count_wrong(work->type, work->out, 0, elements(work, work->row->gets), 1,
                           block_mark(work, work->root, job.rank), iteration);
    for (other = 0; other < job.size; first += work->lengths[other++])
        wrong += count_wrong(work->type, (char *)work->out + first * work->type->size, 0,
                             work->lengths[other], 1, block_mark(work, other, job.rank), iteration);
    return wrong;
}

static brv_status call(void *state, brv_request **request)
{
    struct work *work = state;

    return work->row->call(work, request);
}

/* ---- Programs ------------------------------------------------------------------------------------------ */

static const struct kind KIND = {needs, open_work, prepare, fill_work, call, check, close_work};

/* A program: its name and title, its letters beyond those of every collective, and what it calls. */
#define PROGRAM(name, title, letters, ...)                                                                   \
    {                                                                                                        \
        name, title " Latency", letters, &KIND, 1, 1, &(const struct collective) { __VA_ARGS__ }             \
    }

const struct subject DENSE[] = {
    {"barrier", "Barrier Latency", "", &KIND, 0, 0, &(const struct collective){NOTHING, NOTHING, 0, barrier}},
    PROGRAM("bcast", "Broadcast", "k", NOTHING, VECTOR, ONE_MEMORY, broadcast),
    PROGRAM("bcast_to", "Broadcast to Other Memory", "lk", VECTOR, VECTOR, ROOT_GIVES, broadcast_to),
    PROGRAM("reduce", "Reduce", "lk", VECTOR, VECTOR, SUMS | ROOT_GETS, reduce),
    PROGRAM("allreduce", "Allreduce", "l", VECTOR, VECTOR, SUMS, all_reduce),
    PROGRAM("reduce_scatter", "Reduce_scatter", "l", BLOCKS, BLOCK, SUMS | SPLIT, reduce_scatter),
    PROGRAM("reduce_scatterv", "Reduce_scatterv", "l", BLOCKS, BLOCK, SUMS | SPLIT | LENGTHS,
            reduce_scatter_v),
    PROGRAM("allgather", "Allgather", "l", BLOCK, BLOCKS, 0, all_gather),
    PROGRAM("allgatherv", "Allgatherv", "l", BLOCK, BLOCKS, LENGTHS, all_gather_v),
    PROGRAM("gather", "Gather", "lk", BLOCK, BLOCKS, ROOT_GETS, gather),
    PROGRAM("gatherv", "Gatherv", "lk", BLOCK, BLOCKS, ROOT_GETS | LENGTHS, gather_v),
    PROGRAM("scatter", "Scatter", "lk", BLOCKS, BLOCK, ROOT_GIVES, scatter),
    PROGRAM("scatterv", "Scatterv", "lk", BLOCKS, BLOCK, ROOT_GIVES | LENGTHS, scatter_v),
    PROGRAM("alltoall", "All-to-All Personalized Exchange", "l", BLOCKS, BLOCKS, 0, all_to_all),
    PROGRAM("alltoallv", "All-to-Allv Personalized Exchange", "l", BLOCKS, BLOCKS, LENGTHS, all_to_all_v),
    {NULL, NULL, NULL, NULL, 0, 0, NULL},
};
