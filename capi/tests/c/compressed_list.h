/* Every compressed collective in C. Made from tests/capi/list_compressed.rs. */
#ifndef COMPRESSED_LIST_H
#define COMPRESSED_LIST_H

#include <brevity.h>

typedef struct arguments {
    const uint32_t *indices;
    const float *values;
    size_t count;
    size_t dim;
    size_t k;
    brv_put_back put_back;
    brv_values format;
    brv_sparse *sum;
    brv_sparse *kept;
    size_t limit;
    brv_sparse *const *all;
    brv_ok_topk *ok_topk;
    const float *in;
    float *kept_vector;
    size_t n;
    brv_leader_sum leader_sum;
    brv_draw draw;
    uint64_t seed;
    uint64_t step;
    float *out;
    size_t block;
    brv_low_rank *low_rank;
    const float *const *matrices;
    size_t tensors;
} arguments;

static brv_status call_gtopk_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                        const brv_options *options)
{
    if (request == NULL)
        return brv_gtopk_all_reduce(group, a->indices, a->values, a->count, a->dim, a->k, a->put_back,
                                    a->format, a->sum, a->kept, options);
    return brv_igtopk_all_reduce(group, a->indices, a->values, a->count, a->dim, a->k,
                                 a->put_back, a->format, a->sum, a->kept, request, options);
}

static brv_status call_topk_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                       const brv_options *options)
{
    if (request == NULL)
        return brv_topk_all_reduce(group, a->indices, a->values, a->count, a->dim, a->limit,
                                   a->format, a->sum, a->kept, options);
    return brv_itopk_all_reduce(group, a->indices, a->values, a->count, a->dim, a->limit,
                                a->format, a->sum, a->kept, request, options);
}

static brv_status call_sparse_all_gather(brv_group *group, const arguments *a, brv_request **request,
                                         const brv_options *options)
{
    if (request == NULL)
        return brv_sparse_all_gather(group, a->indices, a->values, a->count, a->dim, a->limit,
                                     a->format, a->all, options);
    return brv_isparse_all_gather(group, a->indices, a->values, a->count, a->dim, a->limit,
                                  a->format, a->all, request, options);
}

static brv_status call_sparse_reduce_scatter(brv_group *group, const arguments *a, brv_request **request,
                                             const brv_options *options)
{
    if (request == NULL)
        return brv_sparse_reduce_scatter(group, a->indices, a->values, a->count, a->dim, a->limit,
                                         a->format, a->sum, a->kept, options);
    return brv_isparse_reduce_scatter(group, a->indices, a->values, a->count, a->dim,
                                      a->limit, a->format, a->sum, a->kept, request, options);
}

static brv_status call_ok_topk_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                          const brv_options *options)
{
    if (request == NULL)
        return brv_ok_topk_all_reduce(group, a->indices, a->values, a->count, a->dim, a->ok_topk,
                                      a->format, a->sum, a->kept, options);
    return brv_iok_topk_all_reduce(group, a->indices, a->values, a->count, a->dim,
                                   a->ok_topk, a->format, a->sum, a->kept, request, options);
}

static brv_status call_hierarchical_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                               const brv_options *options)
{
    if (request == NULL)
        return brv_hierarchical_all_reduce(group, a->in, a->kept_vector, a->n, a->k, a->leader_sum,
                                           a->put_back, a->format, a->sum, options);
    return brv_ihierarchical_all_reduce(group, a->in, a->kept_vector, a->n, a->k,
                                        a->leader_sum, a->put_back, a->format, a->sum, request, options);
}

static brv_status call_random_k_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                           const brv_options *options)
{
    if (request == NULL)
        return brv_random_k_all_reduce(group, a->in, a->n, a->k, a->draw, a->seed, a->step, a->sum, options);
    return brv_irandom_k_all_reduce(group, a->in, a->n, a->k, a->draw, a->seed, a->step,
                                    a->sum, request, options);
}

static brv_status call_block_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                        const brv_options *options)
{
    if (request == NULL)
        return brv_block_all_reduce(group, a->in, a->out, a->n, a->block, options);
    return brv_iblock_all_reduce(group, a->in, a->out, a->n, a->block, request, options);
}

static brv_status call_quantised_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                            const brv_options *options)
{
    if (request == NULL)
        return brv_quantised_all_reduce(group, a->in, a->out, a->kept_vector, a->n, a->format, options);
    return brv_iquantised_all_reduce(group, a->in, a->out, a->kept_vector, a->n, a->format, request, options);
}

static brv_status call_vote_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                       const brv_options *options)
{
    if (request == NULL)
        return brv_vote_all_reduce(group, a->in, a->out, a->n, options);
    return brv_ivote_all_reduce(group, a->in, a->out, a->n, request, options);
}

static brv_status call_low_rank_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                           const brv_options *options)
{
    if (request == NULL)
        return brv_low_rank_all_reduce(group, a->low_rank, a->matrices, a->tensors, options);
    return brv_ilow_rank_all_reduce(group, a->low_rank, a->matrices, a->tensors, request, options);
}

typedef struct entry {
    const char *name;
    brv_status (*call)(brv_group *group, const arguments *a, brv_request **request,
                       const brv_options *options);
    int has_entries, has_vector, has_output, has_format, has_kept;
} entry;

static const entry ALL[] = {
    {"gtopk_all_reduce", call_gtopk_all_reduce, 1, 0, 0, 1, 1},
    {"topk_all_reduce", call_topk_all_reduce, 1, 0, 0, 1, 1},
    {"sparse_all_gather", call_sparse_all_gather, 1, 0, 0, 1, 0},
    {"sparse_reduce_scatter", call_sparse_reduce_scatter, 1, 0, 0, 1, 1},
    {"ok_topk_all_reduce", call_ok_topk_all_reduce, 1, 0, 0, 1, 1},
    {"hierarchical_all_reduce", call_hierarchical_all_reduce, 0, 1, 0, 1, 1},
    {"random_k_all_reduce", call_random_k_all_reduce, 0, 1, 0, 0, 0},
    {"block_all_reduce", call_block_all_reduce, 0, 1, 1, 0, 0},
    {"quantised_all_reduce", call_quantised_all_reduce, 0, 1, 1, 1, 1},
    {"vote_all_reduce", call_vote_all_reduce, 0, 1, 1, 0, 0},
    {"low_rank_all_reduce", call_low_rank_all_reduce, 0, 0, 0, 0, 0},
};

#endif
