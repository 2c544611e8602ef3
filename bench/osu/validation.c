/* What vectors contain, and whether results are what they should be. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Primes, so that blocks of usual lengths differ. */
enum { PERIOD = 61, MARKS = 31 };

int64_t mark_of(int32_t from, int32_t to)
{
    return ((int64_t)from * 7 + (int64_t)to * 3) % MARKS;
}

static int64_t element(size_t index, long iteration)
{
    return (int64_t)((index + (size_t)iteration) % PERIOD);
}

static void store(const struct type *type, void *memory, size_t index, int64_t value)
{
    char *place = (char *)memory + index * type->size;
    float real = (float)value;
    int32_t whole = (int32_t)value;
    uint8_t byte = (uint8_t)value;

    if (type->type == BRV_F32)
        memcpy(place, &real, sizeof real);
    else if (type->type == BRV_I32)
        memcpy(place, &whole, sizeof whole);
    else
        memcpy(place, &byte, sizeof byte);
}

static double load(const struct type *type, const void *memory, size_t index)
{
    const char *place = (const char *)memory + index * type->size;
    float real;
    int32_t whole;
    int8_t byte;

    if (type->type == BRV_F32) {
        memcpy(&real, place, sizeof real);
        return real;
    }
    if (type->type == BRV_I32) {
        memcpy(&whole, place, sizeof whole);
        return whole;
    }
    memcpy(&byte, place, sizeof byte);
    return byte;
}

void fill(const struct type *type, void *memory, size_t first, size_t n, int64_t mark, long iteration)
{
    size_t i;

    for (i = 0; i < n; i++)
        store(type, memory, i, element(first + i, iteration) + mark);
}

size_t count_wrong(const struct type *type, const void *memory, size_t first, size_t n, int64_t terms,
                   int64_t marks, long iteration)
{
    size_t wrong = 0, i;

    for (i = 0; i < n; i++) {
        double expected, found = load(type, memory, i);
        char wrapped[8];

        /* As the type has it: sums of bytes wrap. */
        store(type, wrapped, 0, terms * element(first + i, iteration) + marks);
        expected = load(type, wrapped, 0);
        if (found != expected) {
            log_difference(i, iteration, expected, found);
            wrong++;
        }
    }
    return wrong;
}

void log_difference(size_t index, long iteration, double expected, double found)
{
    static FILE *log;
    char path[4096];

    if (options.log_folder == NULL)
        return;
    if (log == NULL) {
        snprintf(path, sizeof path, "%s/%s.%d.log", options.log_folder, job.program, (int)job.rank);
        log = fopen(path, "w");
        if (log == NULL) {
            perror(path);
            exit(EXIT_FAILURE);
        }
    }
    fprintf(log, "iteration %ld, element %zu: expected %g, found %g\n", iteration, index, expected, found);
}

size_t wrong_everywhere(size_t wrong, size_t bytes)
{
    size_t all = (size_t)sum_of((double)wrong);

    if (all > 0 && job.rank == 0)
        fprintf(stderr, "DATA VALIDATION ERROR: %s: %zu elements of messages of %zu bytes are wrong\n",
                job.program, all, bytes);
    return all;
}

size_t count_lost(const float *total, const float *found, double times, const float *rest, size_t n,
                  long iteration)
{
    size_t wrong = 0, i;
    double largest = 0;

    for (i = 0; i < n; i++)
        largest = fmax(largest, fabs(total[i]));
    for (i = 0; i < n; i++) {
        double whole = found[i] * times + rest[i];

        if (!(fabs(whole - total[i]) <= 1e-4 * largest)) {
            log_difference(i, iteration, total[i], whole);
            wrong++;
        }
    }
    return wrong;
}
