/* The end of the conductor's line in a rank of MPI. */
#include "conducted.h"
#include <mpi.h>

static void join_job(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
}

static void wait_for_all(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void give_up(void)
{
    MPI_Abort(MPI_COMM_WORLD, 1);
}
