#include "programs/environment.hpp"

#include "programs/info_files.hpp"
#include "programs/json.hpp"
#include "programs/line.hpp"

#include <fmt/core.h>

#include <sys/utsname.h>
#include <unistd.h>

#include <iterator>
#include <ranges>

namespace verbena::programs {
std::string or_unknown(std::string_view text) { return text.empty() ? "unknown" : std::string(text); }

std::string environment_text(const Environment& e) {
  return fmt::format("on {} cores ({} allowed), {}, {}, pages {} B, transparent hugepages {}, hugepages free {}, {}",
                     e.cores_online, e.cpus_allowed, e.cpu_model, e.kernel, e.page_bytes, e.transparent_hugepages,
                     e.hugepages, e.build);
}

Json environment_json(const Environment& e) {
  return json_object("cores", e.cores_online, "cpus_allowed", e.cpus_allowed, "cpu", e.cpu_model, "kernel", e.kernel,
                     "page_bytes", e.page_bytes, "transparent_hugepages", e.transparent_hugepages, "hugepages",
                     e.hugepages, "build", e.build);
}

std::string_view proc_field(std::string_view text, std::string_view name) {
  for (const auto each : std::views::split(text, '\n')) {
    const std::string_view line(each.begin(), each.end());
    const std::size_t colon = line.find(':');
    if (colon != std::string_view::npos && without_blanks(line.substr(0, colon)) == name)
      return without_blanks(line.substr(colon + 1));
  }
  return {};
}

std::string_view bracketed(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = open == std::string_view::npos ? open : text.find(']', open);
  return close == std::string_view::npos ? "unknown" : text.substr(open + 1, close - open - 1);
}

Environment read_environment() {
  Environment environment;
  const SystemFiles files;
  // The first part is enough: a big machine's /proc/cpuinfo is long and repeats itself.
  const std::string cpuinfo = files.text("proc/cpuinfo").value_or("");
  const std::string meminfo = files.text("proc/meminfo").value_or("");
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  environment.cores_online = online > 0 ? static_cast<unsigned>(online) : 0;
  environment.cpus_allowed = static_cast<unsigned>(allowed_cpus().size());
  environment.cpu_model = or_unknown(proc_field(cpuinfo, "model name"));
  utsname names{};
  environment.kernel =
      ::uname(&names) == 0 ? fmt::format("{} {} {}", names.sysname, names.release, names.machine) : "unknown";
  environment.transparent_hugepages = bracketed(files.line("sys/kernel/mm/transparent_hugepage/enabled"));
  environment.hugepages =
      fmt::format("{} of {} of {}", or_unknown(proc_field(meminfo, "HugePages_Free")),
                  or_unknown(proc_field(meminfo, "HugePages_Total")), or_unknown(proc_field(meminfo, "Hugepagesize")));
  environment.page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
#ifdef NDEBUG
  environment.build = "release, " __VERSION__;
#else
  environment.build = "with assertions, " __VERSION__;
#endif
  return environment;
}

std::string human_bytes(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (bytes /= 1024; bytes >= 1024 && unit + 1 < std::size(kUnits); bytes /= 1024) ++unit;
  return fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string human_time(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.2f} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

}  // namespace verbena::programs
