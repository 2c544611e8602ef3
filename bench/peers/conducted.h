/* A rank at the end of the conductor's line: what the measuring programs share.
 *
 * Every rank connects to a Unix socket, says "hello RANK", and then does what it is told, one line at a time:
 *
 *     WHAT BYTES ITERATIONS WARMUP
 *
 * It answers each with a line of JSON: {"samples_us":[...],"median_us":...,"mean_us":...}, times for one
 * message or one call. Between two lines the ranks sleep, so that others can be measured. The program defines
 * PROGRAM, its name in messages, and what its library does: the three functions below.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 100, PAGE = 4096, HUGE_PAGE = 2 << 20 };

static int rank, world;
static FILE *orders, *conductor;

/* Joins the job, and sets rank and world. */
static void join_job(int *argc, char ***argv);
/* Waits until all ranks have come here. */
static void wait_for_all(void);
/* Ends the job of all ranks, as far as the library can. */
static void give_up(void);

/* Seconds. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, PROGRAM ": rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    give_up();
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

static inline void *buffer(size_t bytes)
{
    return buffer_on(PAGE, bytes);
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
                perror(PROGRAM ": a rank is not kept on its processor");
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

/* Joins the job, and takes the line whose socket the arguments name. */
static void begin(int argc, char **argv)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    join_job(&argc, &argv);
    if (argc != 2)
        fail("expected the path of a socket");
    pin(&allowed);
    dial(argv[1]);
    fprintf(conductor, "hello %d\n", rank);
    fflush(conductor);
}

/* Reads orders until the conductor hangs up. A barrier precedes each. */
static void follow_orders(void (*obey)(const char *what, int bytes, int iterations, int warmup))
{
    char line[128], what[32];
    int bytes, iterations, warmup;
    while (fgets(line, sizeof line, orders) != NULL) {
        if (sscanf(line, "%31s %d %d %d", what, &bytes, &iterations, &warmup) != 4)
            fail("can't read %s", line);
        if (iterations < 1 || warmup < 0 || bytes < 0)
            fail("%s %d %d %d makes no sense", what, bytes, iterations, warmup);
        wait_for_all();
        obey(what, bytes, iterations, warmup);
    }
}
