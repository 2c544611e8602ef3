/* What bench/compare measures of Brevity, on MPI.
 *
 * Usage: mpirun -n P mpi_p2p SOCKET
 *
 * Every rank connects to the Unix socket SOCKET, says "hello RANK", and then does what it is told, one line
 * at a time:
 *
 *     latency|bandwidth|bibandwidth|allreduce|broadcast BYTES ITERATIONS WARMUP
 *
 * It answers each with a line of JSON: {"samples_us":[...],"median_us":...,"mean_us":...}, times for one
 * message or one call. A rank that has no times of its own answers with no samples. Ranks 2i and 2i+1 are a
 * pair. Between two lines the ranks sleep, so that others can be measured. Results are checked before
 * anything is timed; what is wrong ends the job.
 */
#define PROGRAM "mpi_p2p"
#include "conducted_mpi.h"
#include "messages.h"

enum { WINDOW = 64, POSTED_BYTES = 512 << 10, DATA = 1, GO = 2 };

static void ping_pong(unsigned char *out, unsigned char *in, int bytes, int count)
{
    for (int i = 0; i < count; i++) {
        if (rank % 2 == 0) {
            MPI_Send(out, bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD);
        }
    }
}

/* How many memories a stream is received into, in turn: 512 KiB of them, or else one, as Brevity's receiver
 * has posted. */
static int stream_depth(int bytes)
{
    int depth = POSTED_BYTES / (bytes ? bytes : 1);
    return depth < 1 ? 1 : depth > WINDOW ? WINDOW : depth;
}

/* Messages in windows of 64, from the even rank to the odd one, or both ways; a word back at the end. */
static void stream(unsigned char *out, unsigned char *in, int bytes, int count, int both)
{
    int sends = both || rank % 2 == 0, receives = both || rank % 2 == 1, depth = stream_depth(bytes);
    MPI_Request requests[2 * WINDOW];
    MPI_Status statuses[2 * WINDOW];
    while (count > 0) {
        int window = count < WINDOW ? count : WINDOW, posted = 0;
        for (int i = 0; receives && i < window; i++)
            MPI_Irecv(in + (size_t)bytes * (i % depth), bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD,
                      &requests[posted++]);
        for (int i = 0; sends && i < window; i++)
            MPI_Isend(out, bytes, MPI_BYTE, peer, DATA, MPI_COMM_WORLD, &requests[posted++]);
        MPI_Waitall(posted, requests, statuses);
        count -= window;
    }
    if (rank % 2 == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, peer, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_BYTE, peer, GO, MPI_COMM_WORLD);
}

static void bandwidth(int bytes, int iterations, int warmup, int both)
{
    unsigned char *out = message_buffer(bytes, 1), *in = message_buffer(bytes, stream_depth(bytes));
    fill(out, bytes, rank);
    stream(out, in, bytes, 1, both);
    if (both || rank % 2 == 1)
        check(in, bytes, peer);
    stream(out, in, bytes, warmup, both);
    double start = MPI_Wtime();
    stream(out, in, bytes, iterations, both);
    double time = (MPI_Wtime() - start) * 1e6 / iterations;
    answer(&time, rank % 2 == 0);
    free(out);
    free(in);
}

static void all_reduce(int bytes, int iterations, int warmup)
{
    int count = bytes / (int)sizeof(float);
    float *input = buffer(bytes), *output = buffer(bytes);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
    for (int i = 0; i < count; i++)
        input[i] = (float)(i % 1000 + rank);
    for (int i = 0; i <= warmup; i++)
        MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        if (output[i] != (float)(world * (i % 1000) + world * (world - 1) / 2))
            fail("element %d of a sum of %d is wrong", i, count);
    for (int sample = 0; sample < samples; sample++) {
        int calls = share(iterations, sample, samples);
        double start = MPI_Wtime();
        for (int i = 0; i < calls; i++)
            MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[sample] = (MPI_Wtime() - start) * 1e6 / calls;
    }
    answer(times, samples);
    free(input);
    free(output);
}

/* Two broadcasts are one round: the root goes round, so that no rank can run ahead of the others. */
static void broadcast(int bytes, int iterations, int warmup)
{
    unsigned char *data = buffer(bytes);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES, root = 0;
    for (int i = 0; i <= warmup; i++) {
        if (i < world) {
            memset(data, 0, bytes);
            if (rank == root)
                fill(data, bytes, root);
        }
        MPI_Bcast(data, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        if (i < world)
            check(data, bytes, root);
        root = (root + 1) % world;
    }
    for (int sample = 0; sample < samples; sample++) {
        int calls = share(iterations, sample, samples);
        double start = MPI_Wtime();
        for (int i = 0; i < calls; i++) {
            MPI_Bcast(data, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
            root = (root + 1) % world;
        }
        times[sample] = (MPI_Wtime() - start) * 1e6 / calls;
    }
    answer(times, samples);
    free(data);
}

static void obey(const char *what, int bytes, int iterations, int warmup)
{
    if (strcmp(what, "latency") == 0)
        latency(bytes, iterations, warmup, ping_pong);
    else if (strcmp(what, "bandwidth") == 0)
        bandwidth(bytes, iterations, warmup, 0);
    else if (strcmp(what, "bibandwidth") == 0)
        bandwidth(bytes, iterations, warmup, 1);
    else if (strcmp(what, "allreduce") == 0)
        all_reduce(bytes, iterations, warmup);
    else if (strcmp(what, "broadcast") == 0)
        broadcast(bytes, iterations, warmup);
    else
        fail("%s is not measured here", what);
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    find_peer();
    follow_orders(obey);
    MPI_Finalize();
    return 0;
}
