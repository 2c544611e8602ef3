/* Every dense collective in C. Made from tests/capi/list.rs: see listed.rs there. */
#ifndef DENSE_LIST_H
#define DENSE_LIST_H

#include <brevity.h>

typedef struct arguments {
    const void *in;
    void *out;
    size_t n;
    const size_t *lengths;
    const size_t *received;
    brv_type type;
    brv_reduction reduction;
    int32_t root;
} arguments;

static brv_status call_barrier(brv_group *group, const arguments *a, brv_request **request,
                               const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_barrier(group, options);
    return brv_ibarrier(group,
                        request, options);
}

static brv_status call_broadcast(brv_group *group, const arguments *a, brv_request **request,
                                 const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_broadcast(group, a->out, a->n, a->type, a->root, options);
    return brv_ibroadcast(group, a->out, a->n, a->type, a->root,
                          request, options);
}

static brv_status call_broadcast_to(brv_group *group, const arguments *a, brv_request **request,
                                    const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_broadcast_to(group, a->in, a->out, a->n, a->type, a->root, options);
    return brv_ibroadcast_to(group, a->in, a->out, a->n, a->type, a->root,
                             request, options);
}

static brv_status call_reduce(brv_group *group, const arguments *a, brv_request **request,
                              const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_reduce(group, a->in, a->out, a->n, a->type, a->reduction, a->root, options);
    return brv_ireduce(group, a->in, a->out, a->n, a->type, a->reduction, a->root,
                       request, options);
}

static brv_status call_all_reduce(brv_group *group, const arguments *a, brv_request **request,
                                  const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_all_reduce(group, a->in, a->out, a->n, a->type, a->reduction, options);
    return brv_iall_reduce(group, a->in, a->out, a->n, a->type, a->reduction,
                           request, options);
}

static brv_status call_reduce_scatter(brv_group *group, const arguments *a, brv_request **request,
                                      const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_reduce_scatter(group, a->in, a->out, a->n, a->type, a->reduction, options);
    return brv_ireduce_scatter(group, a->in, a->out, a->n, a->type, a->reduction,
                               request, options);
}

static brv_status call_reduce_scatter_v(brv_group *group, const arguments *a, brv_request **request,
                                        const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_reduce_scatter_v(group, a->in, a->out, a->lengths, a->type, a->reduction, options);
    return brv_ireduce_scatter_v(group, a->in, a->out, a->lengths, a->type, a->reduction,
                                 request, options);
}

static brv_status call_all_gather(brv_group *group, const arguments *a, brv_request **request,
                                  const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_all_gather(group, a->in, a->out, a->n, a->type, options);
    return brv_iall_gather(group, a->in, a->out, a->n, a->type,
                           request, options);
}

static brv_status call_all_gather_v(brv_group *group, const arguments *a, brv_request **request,
                                    const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_all_gather_v(group, a->in, a->out, a->lengths, a->type, options);
    return brv_iall_gather_v(group, a->in, a->out, a->lengths, a->type,
                             request, options);
}

static brv_status call_gather(brv_group *group, const arguments *a, brv_request **request,
                              const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_gather(group, a->in, a->out, a->n, a->type, a->root, options);
    return brv_igather(group, a->in, a->out, a->n, a->type, a->root,
                       request, options);
}

static brv_status call_gather_v(brv_group *group, const arguments *a, brv_request **request,
                                const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_gather_v(group, a->in, a->out, a->lengths, a->type, a->root, options);
    return brv_igather_v(group, a->in, a->out, a->lengths, a->type, a->root,
                         request, options);
}

static brv_status call_scatter(brv_group *group, const arguments *a, brv_request **request,
                               const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_scatter(group, a->in, a->out, a->n, a->type, a->root, options);
    return brv_iscatter(group, a->in, a->out, a->n, a->type, a->root,
                        request, options);
}

static brv_status call_scatter_v(brv_group *group, const arguments *a, brv_request **request,
                                 const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_scatter_v(group, a->in, a->out, a->lengths, a->type, a->root, options);
    return brv_iscatter_v(group, a->in, a->out, a->lengths, a->type, a->root,
                          request, options);
}

static brv_status call_all_to_all(brv_group *group, const arguments *a, brv_request **request,
                                  const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_all_to_all(group, a->in, a->out, a->n, a->type, options);
    return brv_iall_to_all(group, a->in, a->out, a->n, a->type,
                           request, options);
}

static brv_status call_all_to_all_v(brv_group *group, const arguments *a, brv_request **request,
                                    const brv_options *options)
{
    (void)a;
    if (request == NULL)
        return brv_all_to_all_v(group, a->in, a->out, a->lengths, a->received, a->type, options);
    return brv_iall_to_all_v(group, a->in, a->out, a->lengths, a->received, a->type,
                             request, options);
}

typedef struct entry {
    const char *name;
    brv_status (*call)(brv_group *group, const arguments *a, brv_request **request,
                       const brv_options *options);
    int has_lengths, has_reduction, has_root;
} entry;

static const entry ALL[] = {
    {"barrier", call_barrier, 0, 0, 0},
    {"broadcast", call_broadcast, 0, 0, 1},
    {"broadcast_to", call_broadcast_to, 0, 0, 1},
    {"reduce", call_reduce, 0, 1, 1},
    {"all_reduce", call_all_reduce, 0, 1, 0},
    {"reduce_scatter", call_reduce_scatter, 0, 1, 0},
    {"reduce_scatter_v", call_reduce_scatter_v, 1, 1, 0},
    {"all_gather", call_all_gather, 0, 0, 0},
    {"all_gather_v", call_all_gather_v, 1, 0, 0},
    {"gather", call_gather, 0, 0, 1},
    {"gather_v", call_gather_v, 1, 0, 1},
    {"scatter", call_scatter, 0, 0, 1},
    {"scatter_v", call_scatter_v, 1, 0, 1},
    {"all_to_all", call_all_to_all, 0, 0, 0},
    {"all_to_all_v", call_all_to_all_v, 1, 0, 0},
};

#endif
