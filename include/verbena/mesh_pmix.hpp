/// \file
/// A mesh of the processes of a job that mpirun, srun or another launcher with PMIx has started, without MPI. It is in
/// an archive of its own: link with the output of `pkg-config --libs verbena-pmix`.
#pragma once

#include <verbena/mesh.hpp>

#include <memory>

#pragma GCC visibility push(default)

namespace verbena::mesh {

/// A carrier by the launcher's PMIx server. Sets Options::id to this process's rank and Options::processes to the size
/// of the job. Set Options::job before the call; meshes of one job that live at the same time need different ones.
/// PMIx_Init waits for the local PMIx server as long as PMIx's own settings say; the carrier's destructor calls
/// PMIx_Finalize. Mesh::join runs a fence of the whole job: don't call PMIx_Fence yourself during it. Errors here:
/// kNotFound (no PMIx server has started this process), kSystem (what PMIx says). Errors of Mesh::join: kSystem (what
/// PMIx says). Its reasons for a missing process: kAgain (the process has published nothing), kProtocol (the process
/// has published bytes of another length). \thread any  \alloc setup
[[nodiscard]] Result<std::unique_ptr<Carrier>> pmix_carrier(Options& options);

}  // namespace verbena::mesh

#pragma GCC visibility pop
