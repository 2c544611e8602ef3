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
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WINDOW = 64, POSTED_BYTES = 512 << 10, MOST_SAMPLES = 100, DATA = 1, GO = 2, PAGE = 4096,
    HUGE_PAGE = 2 << 20 };

static int rank, world, peer;
static FILE *orders, *conductor;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "mpi_p2p: rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* From the beginning of a page on, and touched, so that no page is missing when the clock runs. */
static void *buffer_on(size_t page, size_t bytes)
{
    void *memory;
    if (posix_memalign(&memory, page, bytes ? bytes : 1) != 0)
        fail("no memory for %zu bytes", bytes);
    if (page == HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes ? bytes : 1);
    return memory;
}

static void *buffer(size_t bytes)
{
    return buffer_on(PAGE, bytes);
}

/* For `count` messages; on huge pages from messages of 2 MiB on, as Brevity's pool of buffers gives them. */
static void *message_buffer(size_t bytes, int count)
{
    return buffer_on(bytes < HUGE_PAGE ? PAGE : HUGE_PAGE, bytes * count);
}

static unsigned char pattern(int sender, size_t index)
{
    return (unsigned char)(index * 7 + (size_t)sender * 101 + 31);
}

static void fill(unsigned char *memory, size_t bytes, int sender)
{
    for (size_t index = 0; index < bytes; index++)
        memory[index] = pattern(sender, index);
}

static void check(const unsigned char *memory, size_t bytes, int sender)
{
    for (size_t index = 0; index < bytes; index++)
        if (memory[index] != pattern(sender, index))
            fail("byte %zu of a message of %zu is wrong", index, bytes);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void answer(double *samples, int count)
{
    double sum = 0;
    fprintf(conductor, "{\"samples_us\":[");
    for (int index = 0; index < count; index++) {
        fprintf(conductor, "%s%.4f", index ? "," : "", samples[index]);
        sum += samples[index];
    }
    fprintf(conductor, "]");
    if (count > 0) {
        qsort(samples, count, sizeof *samples, ascending);
        double median = (samples[(count - 1) / 2] + samples[count / 2]) / 2;
        fprintf(conductor, ",\"median_us\":%.4f,\"mean_us\":%.4f", median, sum / count);
    }
    fprintf(conductor, "}\n");
    fflush(conductor);
}

/* Iterations of sample number `sample` of `samples`. */
static int share(int iterations, int sample, int samples)
{
    return iterations / samples + (sample < iterations % samples);
}

/* Round trips; half of one's time, a sample for each batch of them. */
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

static void latency(int bytes, int iterations, int warmup)
{
    unsigned char *out = message_buffer(bytes, 1), *in = message_buffer(bytes, 1);
    double times[MOST_SAMPLES];
    int samples = iterations < MOST_SAMPLES ? iterations : MOST_SAMPLES;
    fill(out, bytes, rank);
    ping_pong(out, in, bytes, 1);
    check(in, bytes, peer);
    ping_pong(out, in, bytes, warmup);
    for (int sample = 0; sample < samples; sample++) {
        int count = share(iterations, sample, samples);
        double start = MPI_Wtime();
        ping_pong(out, in, bytes, count);
        times[sample] = (MPI_Wtime() - start) * 1e6 / count / 2;
    }
    check(in, bytes, peer);
    answer(times, rank % 2 == 0 ? samples : 0);
    free(out);
    free(in);
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
    if (iterations < 1 || warmup < 0 || bytes < 0)
        fail("%s %d %d %d makes no sense", what, bytes, iterations, warmup);
    if (strcmp(what, "latency") == 0)
        latency(bytes, iterations, warmup);
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

/* A processor for each rank, where there are enough, as for all that is measured: a rank that has just been
 * woken may otherwise share one with its peer for longer than a measurement takes. */
static void pin(const cpu_set_t *allowed)
{
    int place = rank;
    if (CPU_COUNT(allowed) < world)
        return;
    for (int processor = 0; processor < CPU_SETSIZE; processor++)
        if (CPU_ISSET(processor, allowed) && place-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(processor, &one);
            if (sched_setaffinity(0, sizeof one, &one) != 0)
                perror("mpi_p2p: a rank is not kept on its processor");
        }
}

static void dial(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path)
        fail("%s is too long for a socket", path);
    strcpy(address.sun_path, path);
    int line = socket(AF_UNIX, SOCK_STREAM, 0);
    if (line < 0 || connect(line, (struct sockaddr *)&address, sizeof address) != 0)
        fail("nobody listens at %s", path);
    orders = fdopen(line, "r");
    conductor = fdopen(dup(line), "w");
    if (orders == NULL || conductor == NULL)
        fail("can't open %s", path);
}

int main(int argc, char **argv)
{
    char line[128], what[32];
    int bytes, iterations, warmup;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    peer = rank ^ 1;
    if (argc != 2 || world < 2 || world % 2 != 0)
        fail("usage: mpirun -n P mpi_p2p SOCKET, with P even");
    pin(&allowed);
    dial(argv[1]);
    fprintf(conductor, "hello %d\n", rank);
    fflush(conductor);
    while (fgets(line, sizeof line, orders) != NULL) {
        if (sscanf(line, "%31s %d %d %d", what, &bytes, &iterations, &warmup) != 4)
            fail("can't read %s", line);
        MPI_Barrier(MPI_COMM_WORLD);
        obey(what, bytes, iterations, warmup);
    }
    MPI_Finalize();
    return 0;
}
