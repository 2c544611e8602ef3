/*
 * Collectives on blocks: parameters in shards, records of differing lengths, and a reduction of its own.
 *
 *     cc collectives.c $(pkg-config --cflags --libs brevity) -o collectives
 *     brevity run -n 4 -- ./collectives
 */
#include <brevity.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 256 };

/* A loss, and the rank that has it. */
typedef struct loss {
    float value;
    int32_t rank;
} loss;

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, brv_last_error());
    return 1;
}

/* The smaller of two losses; of equal ones that of the lower rank, so that the order does not matter. */
static int smallest(void *into, const void *from, size_t bytes, void *user_data)
{
    loss *best = into;
    const loss *other = from;
    size_t i;

    (void)user_data;
    for (i = 0; i < bytes / sizeof(loss); i++)
        if (other[i].value != best[i].value ? other[i].value < best[i].value : other[i].rank < best[i].rank)
            best[i] = other[i];
    return 0;
}

/* Each rank averages its block of the gradients, steps its shard of the parameters, and all gather them. The
 * gathering is in place and runs while the program goes on. */
static brv_status shards(brv_group *group, float *parameters)
{
    size_t rank = (size_t)brv_group_rank(group), size = (size_t)brv_group_size(group), i;
    float *gradients = malloc(size * BLOCK * sizeof *gradients), *shard = parameters + rank * BLOCK;
    float own[BLOCK];
    brv_request *request = NULL;
    brv_status status = BRV_ERR_EXHAUSTED;

    if (gradients == NULL)
        return status;
    for (i = 0; i < size * BLOCK; i++)
        gradients[i] = (float)rank;
    status = brv_reduce_scatter(group, gradients, own, BLOCK, BRV_F32, BRV_AVERAGE, NULL);
    for (i = 0; i < BLOCK && status == BRV_OK; i++)
        shard[i] -= 2 * own[i];
    if (status == BRV_OK)
        status = brv_iall_gather(group, shard, parameters, BLOCK, BRV_F32, &request, NULL);
    /* Compute here; the parameters belong to the call. */
    if (status == BRV_OK)
        status = brv_request_wait(request, BRV_FOREVER);
    brv_request_free(request);
    free(gradients);
    return status;
}

/* Rank i has i + 1 records of 12 bytes; rank 0 gets all of them. Returns how many it has. */
static brv_status records(brv_group *group, size_t *count)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), other;
    size_t *lengths = malloc((size_t)size * sizeof *lengths), total = 0;
    char (*own)[12] = calloc((size_t)rank + 1, sizeof *own), (*all)[12] = NULL;
    brv_status status = BRV_ERR_EXHAUSTED;

    for (other = 0; other < size && lengths != NULL; other++)
        total += lengths[other] = ((size_t)other + 1) * sizeof *own;
    if (rank == 0)
        all = malloc(total);
    if (lengths != NULL && own != NULL && (all != NULL || rank != 0))
        status = brv_gather_v(group, own, all, lengths, BRV_BYTES, 0, NULL);
    *count = total / sizeof *own;
    free(lengths);
    free(own);
    free(all);
    return status;
}

int main(void)
{
    brv_group *group = NULL;
    brv_reduction reduction;
    float *parameters;
    size_t count;
    loss best;

    brv_log_to_stderr();
    if (brv_group_join(NULL, &group) != BRV_OK)
        return failed("can't join");
    parameters = calloc((size_t)brv_group_size(group) * BLOCK, sizeof *parameters);
    if (parameters == NULL || shards(group, parameters) != BRV_OK)
        return failed("shards");
    if (records(group, &count) != BRV_OK)
        return failed("records");

    /* Every rank learns the smallest loss, and whose it is. */
    best.rank = brv_group_rank(group);
    best.value = (float)(best.rank * best.rank - 3 * best.rank);
    if (brv_reduction_register(group, "smallest loss", sizeof best, smallest, NULL, &reduction) != BRV_OK ||
        brv_all_reduce(group, &best, &best, sizeof best, BRV_BYTES, reduction, NULL) != BRV_OK)
        return failed("smallest loss");
    printf("rank %d of %d: parameter %g, %u records, smallest loss %g on rank %d\n",
           (int)brv_group_rank(group), (int)brv_group_size(group), parameters[0], (unsigned)count, best.value,
           (int)best.rank);

    if (brv_barrier(group, NULL) != BRV_OK)
        return failed("barrier");
    free(parameters);
    brv_group_free(group);
    return 0;
}
