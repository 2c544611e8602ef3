/* For the tests of compressed collectives: entries that any rank can compute for any other. Values are small
 * integers, so that sums are exact. */
#ifndef COMPRESSED_H
#define COMPRESSED_H

#include "check.h"

enum { DIM = 700, K = 60, MOST_RANKS = 8 };

typedef struct vector {
    uint32_t indices[DIM];
    float values[DIM];
    size_t count;
} vector;

/* The entries of a rank, at most K. */
static inline void entries_of(uint32_t seed, int32_t rank, vector *v)
{
    size_t i;

    v->count = 0;
    for (i = 0; i < DIM && v->count < K; i++)
        if (number(seed + 1000, rank, i, 4) == 0) {
            v->indices[v->count] = (uint32_t)i;
            v->values[v->count++] = (float)number(seed, rank, i, 100);
        }
}

static inline brv_sparse *new_sparse(void)
{
    brv_sparse *sparse = NULL;

    CHECK(brv_sparse_new(&sparse) == BRV_OK && sparse != NULL);
    return sparse;
}

/* Reads an object, after a first try with too little room, and checks its entries. */
static inline void read_sparse(const brv_sparse *sparse, vector *v)
{
    size_t count, dim, needed, i;

    CHECK(brv_sparse_count(sparse, &count, &dim) == BRV_OK && dim == DIM && count <= DIM);
    if (count > 0) {
        float untouched = 5;
        uint32_t index = 7;
        CHECK_FAILS(brv_sparse_read(sparse, &index, &untouched, count - 1, &needed), BRV_ERR_ARGUMENT,
                    "they are kept");
        CHECK(needed == count && untouched == 5 && index == 7);
    }
    CHECK(brv_sparse_read(sparse, v->indices, v->values, DIM, &v->count) == BRV_OK && v->count == count);
    for (i = 0; i < count; i++)
        CHECK(v->indices[i] < DIM && (i == 0 || v->indices[i] > v->indices[i - 1]));
}

/* The dense vector of an object. */
static inline void to_dense(const brv_sparse *sparse, float *dense)
{
    size_t i;

    for (i = 0; i < DIM; i++)
        dense[i] = 0;
    CHECK(brv_sparse_add_to(sparse, 1, dense, DIM) == BRV_OK);
}

static inline void sum_over_ranks(brv_group *group, float *values)
{
    CHECK(brv_all_reduce(group, values, values, DIM, BRV_F32, BRV_SUM, NULL) == BRV_OK);
}

static inline void same_on_all_ranks(brv_group *group, const float *values)
{
    float first[DIM];

    memcpy(first, values, sizeof first);
    CHECK(brv_broadcast(group, first, DIM, BRV_F32, 0, NULL) == BRV_OK);
    CHECK(memcmp(first, values, sizeof first) == 0);
}

/* Waits for a started call. */
static inline void ends_with(brv_request *request, brv_status status)
{
    CHECK(brv_request_wait(request, BRV_FOREVER) == status);
    brv_request_free(request);
}

#endif
