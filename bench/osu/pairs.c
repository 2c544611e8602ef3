/* Pairs of ranks, and the loop over types and sizes of what two ranks do. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

int is_only_pair(struct pair *pair)
{
    pair->peer = 1 - job.rank;
    pair->is_first = job.rank == 0;
    pair->count = 1;
    if (job.size != 2 && job.rank == 0)
        fprintf(stderr, "%s: %d ranks: expected 2\n", job.program, (int)job.size);
    return job.size == 2;
}

int is_among_pairs(struct pair *pair, long count)
{
    pair->count = count;
    pair->is_first = job.rank < count;
    pair->peer = job.rank >= 2 * count ? -1 : (int32_t)(job.rank + (pair->is_first ? count : -count));
    if (job.size < 2 && job.rank == 0)
        fprintf(stderr, "%s: 1 rank: expected at least 2\n", job.program);
    return job.size >= 2;
}

int is_too_large(size_t needed, size_t bytes)
{
    if (needed > options.memory_limit && job.rank == 0)
        fprintf(stderr, "%s: sizes end before %zu bytes, which need %zu bytes of memory: raise -M\n",
                job.program, bytes, needed);
    return needed > options.memory_limit;
}

size_t measure_sizes_of_pair(const struct pair *pair, const struct type *type, size_t memory,
                             size_t (*measure)(const struct pair *, const struct type *, size_t))
{
    size_t bytes, wrong = 0;

    for (bytes = options.smallest; bytes <= options.largest && wrong == 0; bytes = next_size(bytes)) {
        /* Less than an element, but not nothing. */
        if (bytes > 0 && bytes < type->size)
            continue;
        if (is_too_large(memory * bytes, bytes))
            break;
        wrong = measure(pair, type, bytes);
    }
    return wrong;
}

int run_pairs(const struct program *program, const struct pair *pair, const char *note, size_t memory,
              size_t (*measure)(const struct pair *, const struct type *, size_t))
{
    size_t wrong = 0;
    int i;

    for (i = 0; i < options.type_count && wrong == 0; i++) {
        print_title(program, options.types[i]);
        if (job.rank == 0)
            fputs(note, stdout);
        wrong = measure_sizes_of_pair(pair, options.types[i], memory, measure);
        end_table();
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

double mean_of(const double *samples, long count)
{
    double sum = 0;
    long i;

    for (i = 0; i < count; i++)
        sum += samples[i];
    return sum / (double)count;
}

long places_for(size_t bytes, long window)
{
    long places = (long)(PLACES_BYTES / (bytes == 0 ? 1 : bytes));

    if (places < FEWEST_PLACES)
        places = FEWEST_PLACES;
    return options.has_many_buffers || places > window ? window : places;
}
