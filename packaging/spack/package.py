# Spack recipe. In a repository of yours: mkdir -p packages/verbena, and this file there; then spack install verbena.
from spack.package import *


class Verbena(MesonPackage):
    """One-sided access, messages and a key-value store for HPC codes, with or without RDMA hardware."""

    homepage = "https://verbena.invalid"
    # No release has an address yet: `spack dev-build verbena@0.1.0` in a checkout, or `spack develop`.
    git = "https://verbena.invalid/verbena.git"

    license("Apache-2.0")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("shared", default=True, description="Also build the shared library")
    variant("verbs", default=True, description="Use RDMA devices")
    variant("keys", default=True, description="Key files")
    variant("pmix", default=False, description="Meshes of a launcher with PMIx")
    variant("programs", default=True, description="verbena-kv, verbena-info and verbena-perf")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("meson@1.0:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    # The header of libibverbs is needed in any case.
    depends_on("rdma-core@40:")
    depends_on("numactl")
    depends_on("hwloc@2:")
    depends_on("fmt@9:")
    depends_on("xxhash@0.8:")
    depends_on("libsodium@1.0.18:", when="+keys")
    depends_on("pmix@4.1:", when="+pmix")
    depends_on("cli11@2.1:", when="+programs")
    depends_on("libedit", when="+programs")
    depends_on("nlohmann-json@3.10:", when="+programs")
    depends_on("libmicrohttpd@0.9.71:", when="+programs")

    # C++23 with std::expected.
    conflicts("%gcc@:11")
    conflicts("%clang@:18")

    def meson_args(self):
        def feature(name):
            return f"-D{name}={'enabled' if self.spec.satisfies('+' + name) else 'disabled'}"

        library = "both" if self.spec.satisfies("+shared") else "static"
        off = [f"-D{name}=disabled" for name in ("tests", "manuals", "benchmarks", "examples", "docs")]
        return [f"-Ddefault_library={library}", *map(feature, ("verbs", "keys", "pmix", "programs")), *off]
