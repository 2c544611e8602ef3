/* The collectives that bench/compare collectives measures of Brevity, on MPI, with floats.
 *
 * Usage: mpirun -n P mpi_collectives SOCKET
 *
 * The orders and answers are those of conducted.h. BYTES is what bench/src/collective/mod.rs calls the bytes
 * of a collective. Results are checked before anything is timed; what is wrong ends the job. A barrier
 * follows each call, outside the clock. The root is rank 0.
 */
#define PROGRAM "mpi_collectives"
#include "conducted_mpi.h"

enum { ROOT = 0 };

/* The memory of one row: `given` floats in, `got` floats out, of `each` to or from a rank. */
struct row {
    float *in, *out;
    size_t given, got;
    int each;
};

struct collective {
    const char *name;
    void (*run)(struct row *row);
    /* How many vectors of BYTES a rank gives and gets: 0 for none, -1 for one of each rank. */
    int gives, gets;
    /* Whether only the root gives, or gets. */
    int root_gives, root_gets;
    /* Whether BYTES are all parts together. */
    int is_split;
};

static void barrier(struct row *row)
{
    (void)row;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void broadcast(struct row *row)
{
    MPI_Bcast(row->out, row->each, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void reduce(struct row *row)
{
    MPI_Reduce(row->in, row->out, row->each, MPI_FLOAT, MPI_SUM, ROOT, MPI_COMM_WORLD);
}

/* In place, as the others do it. */
static void all_reduce(struct row *row)
{
    MPI_Allreduce(MPI_IN_PLACE, row->out, row->each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(struct row *row)
{
    MPI_Reduce_scatter_block(row->in, row->out, row->each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(struct row *row)
{
    MPI_Allgather(row->in, row->each, MPI_FLOAT, row->out, row->each, MPI_FLOAT, MPI_COMM_WORLD);
}

static void gather(struct row *row)
{
    MPI_Gather(row->in, row->each, MPI_FLOAT, row->out, row->each, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void scatter(struct row *row)
{
    MPI_Scatter(row->in, row->each, MPI_FLOAT, row->out, row->each, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void all_to_all(struct row *row)
{
    MPI_Alltoall(row->in, row->each, MPI_FLOAT, row->out, row->each, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct collective COLLECTIVES[] = {
    { "barrier", barrier, 0, 0, 0, 0, 0 },
    { "broadcast", broadcast, 0, 1, 0, 0, 0 },
    { "reduce", reduce, 1, 1, 0, 1, 0 },
    { "allreduce", all_reduce, 0, 1, 0, 0, 0 },
    { "reducescatter", reduce_scatter, -1, 1, 0, 0, 1 },
    { "allgather", all_gather, 1, -1, 0, 0, 0 },
    { "gather", gather, 1, -1, 0, 1, 0 },
    { "scatter", scatter, -1, 1, 1, 0, 0 },
    { "alltoall", all_to_all, -1, -1, 0, 0, 0 },
};

/* Element `index` of vector number `number`. */
static float element(int number, size_t index)
{
    return (float)(index % 1000 + number);
}

/* The sum of element `index` over the vectors of all ranks. */
static float sum(size_t index)
{
    return (float)(world * (index % 1000) + (size_t)world * (world - 1) / 2);
}

/* What this rank gives: its vector, or for each rank a part. */
static float input(const char *name, const struct row *row, size_t index)
{
    size_t part = index / row->each;
    if (strcmp(name, "alltoall") == 0)
        return element(rank * world + part, index % row->each);
    if (strcmp(name, "scatter") == 0)
        return element(part, index % row->each);
    return element(rank, index);
}

/* What this rank gets. */
static float expected(const char *name, const struct row *row, size_t index)
{
    size_t part = index / row->each;
    if (strcmp(name, "reduce") == 0 || strcmp(name, "allreduce") == 0)
        return sum(index);
    if (strcmp(name, "reducescatter") == 0)
        return sum((size_t)rank * row->each + index);
    if (strcmp(name, "alltoall") == 0)
        return element(part * world + rank, index % row->each);
    if (strcmp(name, "broadcast") == 0)
        return element(ROOT, index);
    if (strcmp(name, "scatter") == 0)
        return element(rank, index);
    return element(part, index % row->each);
}

static struct row prepare(const struct collective *what, int bytes)
{
    size_t each = bytes / sizeof(float) / (what->is_split ? world : 1);
    size_t given = each * (what->gives < 0 ? world : what->gives);
    size_t got = each * (what->gets < 0 ? world : what->gets);
    struct row row = { .each = (int)each };
    row.given = what->root_gives && rank != ROOT ? 0 : given;
    row.got = what->root_gets && rank != ROOT ? 0 : got;
    row.in = buffer(row.given * sizeof(float));
    row.out = buffer(row.got * sizeof(float));
    for (size_t i = 0; i < row.given; i++)
        row.in[i] = input(what->name, &row, i);
    if (what->run == all_reduce || (what->run == broadcast && rank == ROOT))
        for (size_t i = 0; i < row.got; i++)
            row.out[i] = element(rank, i);
    return row;
}

static void check(const struct collective *what, const struct row *row)
{
    for (size_t i = 0; i < row->got; i++)
        if (row->out[i] != expected(what->name, row, i))
            fail("element %zu of %s of %zu is wrong", i, what->name, row->got);
}

static void measure(const struct collective *what, int bytes, int iterations, int warmup)
{
    struct row row = prepare(what, bytes);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
    what->run(&row);
    check(what, &row);
    /* Zeros stay zeros in every sum. */
    if (what->run == all_reduce)
        memset(row.out, 0, row.got * sizeof(float));
    for (int i = 0; i < warmup; i++) {
        what->run(&row);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int sample = 0; sample < samples; sample++) {
        int calls = share(iterations, sample, samples);
        double taken = 0;
        for (int i = 0; i < calls; i++) {
            double start = MPI_Wtime();
            what->run(&row);
            taken += MPI_Wtime() - start;
            MPI_Barrier(MPI_COMM_WORLD);
        }
        times[sample] = taken * 1e6 / calls;
    }
    answer(times, samples);
    free(row.in);
    free(row.out);
}

static void obey(const char *name, int bytes, int iterations, int warmup)
{
    for (size_t i = 0; i < sizeof COLLECTIVES / sizeof *COLLECTIVES; i++)
        if (strcmp(name, COLLECTIVES[i].name) == 0) {
            measure(&COLLECTIVES[i], bytes, iterations, warmup);
            return;
        }
    fail("%s is not measured here", name);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    follow_orders(obey);
    MPI_Finalize();
    return 0;
}
