# SPDX-License-Identifier: Apache-2.0
#
# make help            show this help
# make                 build the programs into build/$(MODE)/bin
# make format          format the C, C++ and CUDA code as .clang-format says
# make lint            check the format, the length of lines (at most 100 columns), the words of
#                      comments and manuals (scripts/words), and the rules of .clang-tidy
# make check           lint, unit tests, and tests on mounted stores (needs root; skipped tests are
#                      listed)
# make check-quick     a part of make check that takes three minutes
# make check-long      all tests, each in every way, and each campaign for some minutes (two hours);
#                      the targets of the campaigns run them for longer
# make demo            run the cache on a real trace
# make bench           compare the speed of a mount with a bare tmpfs and other alternatives
# make bench-quick     the first table of make bench
# make bench-modes     compare mounts with and without passthrough and io_uring
# make bench-full      the part of make bench with a full tier (QUICK=1: shorter)
# make bench-nodes     compare the ways in which a node gets what another node has stored: peers, a
#                      folder, Redis and S3
# make cores           measure how calls per second grow with the number of callers, and list the
#                      locks for which the daemon waits
# make mlperf MLPERF=DIR   run the KV cache benchmark of MLPerf Storage on mounts, on the disk's
#                      filesystem and on a tmpfs (8 minutes; DIR is the folder
#                      kv_cache_benchmark of github.com/mlcommons/storage, PYTHON= is a Python with
#                      numpy and PyYAML; ROUNDS=1 SECONDS=10: shorter)
# make wheel           build the Python package, build/python/kvcachefs-VERSION-....whl, with a
#                      manylinux tag if auditwheel is installed; URL= is the address of the project
#                      in the package's metadata
# CUDA=0               build the library without CUDA even if nvcc exists (NVCC= names another nvcc)
# make engines E="lmcache nixl"   run the engines' storage code on mounts (all: 30 minutes,
#                      and 7 GB of packages)
# make ttft            measure the time to the first token of vLLM on the CPU, with its own storage,
#                      with LMCache and with a mount (6 to 10 minutes; needs the packages of
#                      make engines)
# make conformance     run pjdfstest, fsx and xfstests on mounts (PJDFSTEST= FSX= XFSTESTS= say
#                      where they are; S="fsx": one of them)
# make gpu-measure [DIR=MOUNT]    measure the figures of kvcachefs-gpu(7) on this machine's GPU
# make quality         measure the errors of the lossy codecs, on synthetic data and on a small model
#                      that this target trains (minutes; PYTHON= is a Python with numpy and torch)
# make host-measure [DIR=MOUNT]   compare the library's transfers in host memory with file calls
# make scale N="1000 1000000"     measure stores with these numbers of objects
# make fuzz            run every fuzzer of tests/fuzz for FUZZ_SECONDS (3600) each, FUZZ_JOBS at a
#                      time (the number of CPUs); F="redis s3": only these
# make fuzz-cover      count the lines that the seeds and the corpus of make fuzz reach
# make mutants         break single lines of the engine and count how many the tests find;
#                      M="load- sum": only the rows of scripts/mutants whose names contain
#                      one of these words
# make install         install below PREFIX (/usr/local), with links in /sbin for mount(8) and
#                      fsck(8); make uninstall removes the files; DESTDIR= is supported
# make deb             build Debian packages for this machine's release, in build/deb
# make dist            pack the files of the last commit as build/dist/kvcachefs-VERSION.tar.gz, and
#                      write SHA256SUMS there; make dist-check builds and tests it outside git
# make docs            write the manuals as HTML to build/docs (needs mandoc)
# make deb-check       build, install, test and purge the packages in chroots with a minimal Debian
#                      or Ubuntu, for each of RELEASES="bookworm trixie" (30 minutes; noble and
#                      resolute are Ubuntu); MIRROR= and UBUNTU_MIRROR= replace apt's mirrors
# MODE=release|debug|asan|tsan   V=1 (show the commands)   CI=1 (warnings are errors)

MODE ?= release
B := build/$(MODE)
PREFIX ?= /usr/local
VERSION := $(shell cat VERSION)

# Each target that builds installs its packages first (scripts/setup).
DEPS := build/deps/lib/pkgconfig
PKG := PKG_CONFIG_PATH=$(DEPS) pkg-config

opt_release := -O2 -DNDEBUG
opt_debug   := -Og -DKVC_LOCK_PROFILE
opt_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
opt_tsan    := -O1 -fsanitize=thread
# for the fuzzers only: libFuzzer, and a build that counts lines. make check builds them without
# optimization (FUZZ_O), in half the time, since it runs each for a second only.
FUZZ_O      ?= -O1
opt_fuzz    := $(FUZZ_O) -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
opt_fuzzcov := -O1 -fsanitize=fuzzer-no-link -fprofile-instr-generate -fcoverage-mapping
ifeq ($(opt_$(MODE)),)
$(error MODE=$(MODE): it is one of release, debug, asan, tsan)
endif

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wvla -Wno-format-truncation
ifneq ($(CI),)
WARN += -Werror
endif
# the warnings of gcc and clang-tidy are enough, and clang does not know #pragma GCC
WARN += $(if $(filter fuzz%,$(MODE)),-Wno-error -Wno-unknown-pragmas)
CC := $(if $(filter fuzz%,$(MODE)),clang-19,gcc)
# The output does not contain the folder of the build. clang's line counts need that folder.
HERE := $(if $(filter fuzz%,$(MODE)),,-ffile-prefix-map=$(CURDIR)=.)
# The hardening flags come last, because the caller's flags may set a lower level.
# Code is position independent: -fPIE for programs; the library's files get -fPIC after it.
hard_release := -fPIE $(shell CC=$(CC) scripts/hardening)
CFLAGS_ALL := -std=gnu11 -g $(opt_$(MODE)) $(WARN) -fno-strict-aliasing -pthread -D_GNU_SOURCE $(HERE) \
	-D_FILE_OFFSET_BITS=64 -DKVC_VERSION='"$(VERSION)"' $(CPPFLAGS) $(CFLAGS) $(hard_$(MODE))
# the policies do arithmetic in short loops, which gcc's -O2 does not optimize further
opt_policy := $(if $(filter release,$(MODE)),-O3)
# Tables that the loader fills are read-only after the start, and no stack is executable.
link_release := -Wl,-z,relro,-z,now,-z,noexecstack
pie_release := -pie
# with -flto the link compiles, too
LDFLAGS_ALL := $(HERE) $(filter -fsanitize% -fprofile%,$(opt_$(MODE))) $(link_$(MODE)) -pthread $(LDFLAGS)

# Allowed includes: each folder sees its own headers and those of the folders named here.
# The engine's layers, the lowest first (engine/README): each includes itself and the layers below.
LAYERS := base policy frames catalog pool telemetry limits objects access tiering names evict ops jobs report mount
lower   = $(if $(filter-out $(1),$(firstword $(2))),$(firstword $(2)) $(call lower,$(1),$(wordlist 2,99,$(2))))
upto    = $(foreach f,$(call lower,$(1),$(LAYERS)) $(1),-Iengine/$f)
$(foreach f,$(LAYERS),$(eval inc_engine/$f := $(call upto,$f)))
# These two read the structs of objects/node.h and chunk.h, but call nothing in objects.
$(foreach f,telemetry limits,$(eval inc_engine/$f += -Iengine/objects))
inc_tiers  := -Itiers -Itiers/programs $(call upto,frames)
inc_tiers/programs := -Itiers/programs
inc_fs     := -Ifs $(call upto,catalog) -Iengine/ops -Iengine/jobs -Iengine/report -Iengine/mount -Itiers
inc_mkfs   := -Imkfs $(call upto,catalog) -Itiers
# a folder for each tool; kvcachectl consists of ctl and replay, and contains the library of gpu
$(foreach t,mkfs fsck mount ctl replay doctor,$(eval inc_mkfs/$t := $(inc_mkfs)))
inc_mkfs/ctl += -Igpu
inc_mkfs/replay += -Imkfs/ctl
inc_mkfs/doctor += -Imkfs/ctl -Imkfs/replay
inc_gpu    := -Igpu
inc_tests  := $(call upto,mount) -Imkfs -Itiers -Itiers/programs -Ifs -Igpu
inc_tests/unit := $(inc_tests) -Itests/unit/catalog -Itests/unit/support
inc_tests/unit/catalog := $(inc_tests/unit)
inc_tests/unit/support := $(inc_tests/unit)
inc_tests/tools := $(inc_tests)
inc_tests/fuzz := $(inc_tests)
lib_engine := -lsqlite3 -lxxhash -lzstd -lcrypto -lm

lib_tiers   = $$($(PKG) --libs hiredis_ssl hiredis libcurl) -lssl

# the package is named msgpack in Debian 12 and msgpack-c in Debian 13
lib_zmq     = $$($(PKG) --libs libzmq) $$($(PKG) --libs msgpack-c 2>/dev/null || $(PKG) --libs msgpack)

src = $(sort $(wildcard $(1)/*.c))
obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
ENGINE := $(foreach f,$(LAYERS),$(call obj,$(call src,engine/$f)))
TIERS  := $(call obj,$(call src,tiers))
FS     := $(call obj,$(call src,fs))
TOOLS  := mkfs.kvcachefs fsck.kvcachefs mount.kvcachefs kvcachectl
NVCC   ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA   ?= $(if $(filter release debug,$(MODE)),$(if $(NVCC),1,0),0)
ARCHS  ?= 80 90
gencode := $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
# Without CUDA: a file that refuses devices. With CUDA: the kernels, and CUDA's runtime linked in.
ifeq ($(CUDA),1)
GPU    := $(call obj,$(filter-out gpu/cuda_none.c gpu/example%,$(call src,gpu))) $(B)/obj/gpu/cuda.o
lib_gpu := -lcrypto -lm -L$(patsubst %/bin/nvcc,%/lib64,$(realpath $(NVCC))) -lcudart_static -lstdc++ -ldl -lrt
else
GPU    := $(call obj,$(filter-out gpu/example%,$(call src,gpu)))
lib_gpu := -lcrypto -lm
endif
GPU_HOST := $(call obj,$(filter-out gpu/cuda_none.c gpu/example%,$(call src,gpu)))
UNIT   := $(patsubst tests/unit/%.c,%,$(sort $(wildcard tests/unit/*.c)))
TTOOLS := $(patsubst tests/tools/%.c,%,$(sort $(wildcard tests/tools/*.c)))
FUZZ   := $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/*.c)))
BINS   := $(B)/bin/kvcachefs $(TOOLS:%=$(B)/bin/%)
LIBS   := $(B)/lib/libkvcachefs.a $(B)/lib/libkvcachefs.so.0 $(B)/lib/kvcachefs.pc $(B)/lib/kvcachefs@.service $(B)/lib/METADATA
# programs that implement a tier, as examples
PROGRAMS := $(patsubst tiers/programs/%.c,$(B)/bin/tier-%,$(sort $(wildcard tiers/programs/*.c)))
EXAMPLES := $(patsubst gpu/%.c,$(B)/bin/%,$(sort $(wildcard gpu/example*.c)))
MAN    := $(sort $(wildcard man/*.[1-9]))
ALL_C  := $(shell find engine tiers fs mkfs gpu tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort)

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

all: $(BINS) $(LIBS) $(EXAMPLES) $(PROGRAMS)

# The packages that the programs need, and those of tests and lint
build/.setup: scripts/setup scripts/hardening scripts/libfuse-uring-late-reply.patch
	@FOR=build scripts/setup
	@touch $@
build/.setup-tests: build/.setup
	@FOR=tests scripts/setup
	@touch $@
help: ; @sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

setup: build/.setup-tests

# The compiler flags, except for the name of this folder, and the libraries of scripts/setup. A
# changed library means changed headers and programs, whatever the times of its files are.
$(B)/flags: FORCE | build/.setup
	@mkdir -p $(B)/bin $(B)/obj $(B)/lib
	@{ echo '$(CC) $(filter-out $(HERE),$(CFLAGS_ALL) $(opt_policy) $(LDFLAGS_ALL)) $(CUDA)'; cat build/deps/lib/*.a 2>/dev/null | cksum; } > $@.new; \
		cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

define compile
$(B)/obj/$(1)/%.o: $(1)/%.c $(B)/flags $(if $(filter tests/%,$(1)),| build/.setup-tests)
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$(CC) $$(CFLAGS_ALL) $(2) $(inc_$(1)) -MMD -MP -c -o $$@ $$<
# a header or the checks changed: all files of the folder; otherwise the changed files
build/lint/$(1).ok: $(wildcard $(1)/*.c) $(filter %.h,$(ALL_C)) .clang-tidy tests/.clang-tidy scripts/tidy | build/.setup-tests
	$$(call say,TIDY,$(1))
	@mkdir -p $$(@D)
	$$(Q)CLANG_TIDY=$(CLANG_TIDY) scripts/tidy build/lint/$(1) $(filter-out -Werror,$(CFLAGS_ALL)) $(2) $(inc_$(1)) \
		-- $$(filter $(1)/%.c,$$(if $$(filter-out %.c,$$?),$$^,$$?)) >$$@.log 2>&1 || { cat $$@.log; exit 1; }
	@mv $$@.log $$@
TIDY += build/lint/$(1).ok
endef
CLANG_TIDY := clang-tidy-19
$(eval $(call compile,engine/policy,$(opt_policy)))
$(foreach d,$(patsubst %,engine/%,$(filter-out policy,$(LAYERS))) tiers/programs mkfs $(addprefix mkfs/,mkfs fsck mount ctl replay doctor) tests/unit tests/unit/catalog tests/unit/support,$(eval $(call compile,$(d))))
$(eval $(call compile,tests/tools,$$$$($(PKG) --cflags hiredis)))
$(eval $(call compile,tests/fuzz,$$$$($(PKG) --cflags hiredis hiredis_ssl libcurl fuse3)))
$(eval $(call compile,tiers,$$$$($(PKG) --cflags hiredis hiredis_ssl libcurl)))
$(eval $(call compile,gpu,-fPIC -fvisibility=default $(if $(filter 1,$(CUDA)),-DKVCACHEFS_CUDA)))
$(eval $(call compile,fs,$$$$($(PKG) --cflags fuse3 libmicrohttpd) $$$$(test ! -e build/deps/patch.used || echo -DKVFS_LIBFUSE_PATCHED)))

$(B)/obj/fs/page.o: fs/page.html
$(B)/bin/kvcachefs: $(FS) $(TIERS) $(ENGINE)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(pie_$(MODE)) -o $@ $^ $$($(PKG) --static --libs fuse3) $$($(PKG) --libs libmicrohttpd) $(lib_tiers) $(lib_engine)

$(B)/bin/mkfs.kvcachefs: $(call obj,$(call src,mkfs/mkfs) $(addprefix mkfs/,device.c mounts.c pools.c tool.c))
$(B)/bin/fsck.kvcachefs: $(call obj,$(call src,mkfs/fsck) $(addprefix mkfs/,device.c tool.c))
$(B)/bin/mount.kvcachefs: $(call obj,$(call src,mkfs/mount) mkfs/mounts.c mkfs/tool.c)
$(B)/bin/kvcachectl: $(call obj,$(call src,mkfs/ctl) $(call src,mkfs/replay) $(call src,mkfs/doctor) $(call src,mkfs)) $(B)/lib/libkvcachefs.a
$(TOOLS:%=$(B)/bin/%): $(TIERS) $(ENGINE)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(pie_$(MODE)) -o $@ $(filter $(B)/obj/mkfs/% %.a,$^) $(TIERS) $(ENGINE) $(lib_tiers) $(lib_engine) $(if $(filter %/mount.kvcachefs,$@),,-lblkid) \
		$(if $(filter %.a,$^),$(lib_gpu) $(lib_zmq))

$(B)/obj/gpu/cuda.o: gpu/cuda.cu $(wildcard gpu/*.h gpu/*.cuh) $(B)/flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -O3 -g -std=c++17 $(gencode) \
		-Xcompiler -fPIC,-Wall,$(HERE) -DKVC_VERSION='"$(VERSION)"' $(inc_gpu) -c -o $@ $<
$(B)/lib/libkvcachefs.a: $(GPU)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^
$(B)/lib/libkvcachefs.so.0: $(GPU) gpu/libkvcachefs.map
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libkvcachefs.so.0,-z,nodelete -Wl,--version-script=gpu/libkvcachefs.map -o $@ $(GPU) $(lib_gpu)
	$(Q)ln -sf libkvcachefs.so.0 $(@D)/libkvcachefs.so
# These contain the folders of make install, which may differ from those of the last run.
places = @mkdir -p $(@D); sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|; s|@VERSION@|$(VERSION)|; s|@PRIVATE@|$(lib_gpu)|' \
	$< > $@.new && { cmp -s $@.new $@ && rm $@.new || mv $@.new $@; }
$(B)/lib/kvcachefs.pc: gpu/kvcachefs.pc.in FORCE
	$(places)
$(B)/lib/kvcachefs@.service: scripts/systemd/kvcachefs@.service FORCE
	$(places)
$(B)/lib/METADATA: gpu/python/METADATA.in FORCE
	$(places)
ifeq ($(CUDA),1)
$(EXAMPLES:$(B)/bin/%=$(B)/obj/gpu/%.o): CFLAGS_ALL += -DEXAMPLE_CUDA -isystem $(patsubst %/bin/nvcc,%/include,$(realpath $(NVCC)))
endif
$(EXAMPLES): $(B)/bin/%: $(B)/obj/gpu/%.o $(B)/lib/libkvcachefs.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(lib_gpu)

$(PROGRAMS): $(B)/bin/tier-%: $(B)/obj/tiers/programs/%.o
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(pie_$(MODE)) -o $@ $^

# The device half with a fake CUDA (tests/fakecuda), on any machine, and with the real CUDA if nvcc
# exists.
FAKE := g++ -std=c++17 -g $(opt_$(MODE)) -fPIC -DKVC_VERSION='"$(VERSION)"' -Wall -Wextra $(if $(CI),-Werror) -Wno-missing-field-initializers -Wno-subobject-linkage -pthread -Itests/fakecuda $(inc_gpu)
$(B)/obj/tests/fakecuda/%.o: tests/fakecuda/%.cpp $(wildcard tests/fakecuda/*.h) $(B)/flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(FAKE) -c -o $@ $<
$(B)/obj/tests/fakecuda/gpu.o: tests/tools/gpu.cu gpu/cuda.cu $(wildcard tests/*/*.cuh tests/fakecuda/*.h gpu/*.h gpu/*.cuh) $(B)/flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(FAKE) -x c++ -c -o $@ $<
$(B)/obj/tests/fakecuda/cuda.o: gpu/cuda.cu $(wildcard tests/fakecuda/*.h gpu/*.h gpu/*.cuh) $(B)/flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(FAKE) $(if $(filter release,$(MODE)),-O0) -x c++ -c -o $@ $<
$(B)/bin/test-gpu-fake: $(B)/obj/tests/fakecuda/gpu.o $(B)/obj/tests/fakecuda/fake.o $(GPU_HOST)
	$(call say,LINK,$@)
	$(Q)g++ $(LDFLAGS_ALL) -Wl,--wrap=kvcachefs_copy_all -o $@ $^ -lcrypto -lm
# The device half with the fake CUDA as a library, for the Python package. Its cuda.o is built without
# optimization, which saves more time than its few calls need.
$(B)/lib/libkvcachefs_fake.so: $(B)/obj/tests/fakecuda/cuda.o $(B)/obj/tests/fakecuda/fake.o $(GPU_HOST)
	$(call say,LINK,$@)
	$(Q)g++ $(LDFLAGS_ALL) -shared -o $@ $^ -lcrypto -lm
# Without a device the program cannot run: only its intermediate code is built, in half the time.
gencode_test := $(if $(wildcard /dev/nvidiactl),-O3 $(gencode),-O0 -gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS)))
# The program is built again when a device appears.
$(B)/flags.gpu: FORCE | $(B)/flags
	@echo '$(gencode_test)' | cmp -s - $@ || echo '$(gencode_test)' >$@
$(B)/bin/test-gpu: tests/tools/gpu.cu gpu/cuda.cu $(wildcard tests/*/*.cuh gpu/*.h gpu/*.cuh) $(GPU_HOST) $(B)/flags.gpu
	$(call say,NVCC,$@)
	$(Q)$(NVCC) -g -std=c++17 $(gencode_test) -Xcompiler -pthread $(inc_gpu) -o $@ $< $(GPU_HOST) -lcrypto -lm

unitwrap_queue := fallocate64 pread64
unitwrap_warm := pread64 linkat fallocate64 close munmap
$(patsubst %,$(B)/bin/unit-%,forks library keys names parts queue rope warm): $(B)/bin/unit-%: $(B)/obj/tests/unit/%.o $(B)/lib/libkvcachefs.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(addprefix -Wl$(comma)--wrap=,$(unitwrap_$*)) -o $@ $^ $(lib_gpu) -lcmocka
$(B)/bin/test-library $(B)/bin/test-queue $(B)/bin/test-stores: $(B)/bin/test-%: $(B)/obj/tests/tools/%.o $(B)/lib/libkvcachefs.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(lib_gpu)
# without libraries, so that a copy runs on another machine
$(B)/bin/test-cores: $(B)/obj/tests/tools/cores.o
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^
$(B)/bin/unit-rings: $(B)/obj/fs/ring.o $(B)/obj/fs/wait_slots.o
$(B)/bin/unit-history: $(B)/obj/fs/history.o
$(B)/bin/unit-replay: $(B)/obj/fs/replay.o
$(B)/bin/unit-catalog: $(call obj,$(call src,tests/unit/catalog))
# The calls of the engine that a unit test's program replaces (tests/unit/support/alloc.h)
wrap_alloc := malloc calloc realloc reallocarray aligned_alloc strdup strndup free ZSTD_createCCtx ZSTD_createDCtx \
	EVP_CIPHER_CTX_new EVP_MAC_CTX_new EVP_KDF_fetch EVP_KDF_CTX_new
unitwrap_memory := $(wrap_alloc)
unitwrap_memory_catalog := $(wrap_alloc)
# unit tests that run an engine in their own process (tests/unit/support/engine.h)
wrap_engine := kvc_clock_ns
unitwrap_accesses := $(wrap_engine)
unitwrap_requests := $(wrap_engine)
unitwrap_joint := $(wrap_engine)
unitwrap_acks := setsockopt
unitwrap_array := realloc mmap64 mremap
unitwrap_bounds := $(wrap_engine) kvc_name_each
unitwrap_extent := kvc_array_grow
unitwrap_holds := $(wrap_engine) kvc_name_each kvc_name_del kvc_row_get kvc_chunk_get \
	kvc_catalog_lock_at kvc_catalog_pause kvc_catalog_unlock kvc_catalog_seal kvc_catalog_write \
	kvc_reader_get kvc_reader_get_held kvc_sql_step kvc_admission_check_locked calloc pthread_mutex_trylock
unitwrap_spills := $(wrap_engine) pthread_mutex_unlock
unitwrap_policy_steps := kvc_array_grow
unitwrap_pins := $(wrap_engine) kvc_chunk_pop_locked
unitwrap_quotas := $(wrap_engine) kvc_chunk_drop kvc_trimmer_turn
unitwrap_top_models := $(wrap_engine) kvc_name_of
unitwrap_trimmer := $(wrap_engine)
unitwrap_heads := $(wrap_engine) pthread_mutex_lock kvc_name_of
unitwrap_locks := $(wrap_engine) pthread_mutex_lock usleep
unitwrap_calls_memory := $(wrap_engine) $(wrap_alloc)
unitwrap_drops := $(wrap_engine) $(wrap_alloc) kvc_catalog_pause kvc_name_of kvc_name_each kvc_row_get kvc_object_get \
	kvc_place_get kvc_chunk_get kvc_xattr_get kvc_peek_inode kvc_peek_names
unitwrap_moves := $(wrap_engine) $(wrap_alloc) kvc_name_of kvc_name_each kvc_name_get kvc_row_get kvc_object_get \
	kvc_place_get kvc_chunk_get kvc_xattr_get
$(B)/bin/unit-memory $(B)/bin/unit-memory_catalog: $(call obj,tests/unit/support/alloc.c)
$(B)/bin/unit-bounds $(B)/bin/unit-holds $(B)/bin/unit-heads $(B)/bin/unit-locks $(B)/bin/unit-top_models $(B)/bin/unit-spills \
	$(B)/bin/unit-quotas $(B)/bin/unit-pins $(B)/bin/unit-accesses $(B)/bin/unit-joint \
	$(B)/bin/unit-requests $(B)/bin/unit-trimmer: $(call obj,tests/unit/support/engine.c)
$(B)/bin/unit-drops $(B)/bin/unit-moves $(B)/bin/unit-calls_memory: $(call obj,tests/unit/support/engine.c tests/unit/support/alloc.c)
$(B)/bin/unit-memory_catalog: $(call obj,$(call src,tests/unit/catalog))
$(B)/bin/unit-holds: $(call obj,tests/unit/support/steps.c)
# the policies, compiled so that each step of a loop calls a function of the test
STEPPED := $(patsubst engine/policy/%.c,$(B)/obj/tests/stepped/%.o,$(wildcard engine/policy/*.c))
$(STEPPED): $(B)/obj/tests/stepped/%.o: engine/policy/%.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) -O1 -fsanitize-coverage=trace-pc $(inc_engine/policy) -MMD -MP -c -o $@ $<
$(B)/bin/unit-policy_steps: $(B)/obj/tests/unit/policy_steps.o $(STEPPED) $(filter $(B)/obj/engine/base/%,$(ENGINE))
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(addprefix -Wl$(comma)--wrap=,$(unitwrap_policy_steps)) -o $@ $^ $(lib_engine) -lcmocka
# The tests are eighty programs, which gold links in a third of the time.
GOLD := $(if $(filter release debug,$(MODE)),$(if $(shell command -v ld.gold),-fuse-ld=gold))
$(B)/bin/unit-%: $(B)/obj/tests/unit/%.o $(TIERS) $(ENGINE)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(GOLD) $(addprefix -Wl$(comma)--wrap=,$(unitwrap_$*)) -o $@ $^ $(lib_tiers) $(lib_engine) -lcmocka
$(B)/bin/test-remote: $(call obj,mkfs/tier_suite.c)
$(B)/bin/test-%: $(B)/obj/tests/tools/%.o $(TIERS) $(ENGINE)
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(GOLD) -o $@ $^ $(lib_tiers) $(lib_engine) -luring

# Tests preload these libraries into daemons. They replace libc's calls, so they are built without
# sanitizers.
PRELOAD := $(patsubst tests/preload/%.c,$(B)/lib/%.so,$(wildcard tests/preload/*.c))
$(PRELOAD): $(B)/lib/%.so: tests/preload/%.c $(wildcard tests/preload/*.h) $(B)/flags
	$(call say,LINK,$@)
	$(Q)$(CC) -std=gnu11 -g -O2 -U_FORTIFY_SOURCE $(filter-out -Wmissing-prototypes,$(WARN)) -pthread -D_GNU_SOURCE -fPIC -shared -o $@ $<

# With MODE=fuzz or fuzzcov. Libraries that feed a parser are replaced by stubs.
wrap_lease  := kvc_model_rescan_wait
wrap_url    := kvct_redis_dial
wrap_redis  := kvct_redis_dial kvct_redis_context kvc_mono_ns usleep
wrap_ext    := kvct_program_check kvct_link_open kvct_link_close kvct_link_ask kvct_link_abilities kvct_link_used send \
	kvc_mono_ns usleep
wrap_s3     := curl_easy_init curl_easy_setopt curl_easy_perform curl_easy_getinfo curl_easy_reset curl_easy_cleanup \
	kvc_mono_ns usleep
wrap_peers  := curl_easy_init curl_easy_setopt curl_easy_perform curl_easy_getinfo curl_easy_reset curl_easy_cleanup \
	kvc_mono_ns pthread_create
$(B)/bin/fuzz-lease: $(B)/obj/fs/virtual.o $(B)/obj/fs/virtual_lease.o $(B)/obj/fs/text.o
# An archive, so that each fuzzer contains only its parser: they link in a fifth of the time.
$(B)/lib/fuzzed.a: $(TIERS) $(ENGINE)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^
LLD := $(if $(filter fuzz%,$(MODE)),$(if $(shell command -v ld.lld),-fuse-ld=lld))
$(B)/bin/fuzz-%: $(B)/obj/tests/fuzz/%.o $(B)/lib/fuzzed.a $(B)/lib/libkvcachefs.a
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(LLD) -fsanitize=fuzzer $(patsubst %,-Wl$(comma)--wrap=%,kvc_log $(wrap_$*)) -o $@ $^ \
		$(lib_tiers) $(lib_engine) $(lib_gpu)
comma := ,
fuzzers: $(FUZZ:%=$(B)/bin/fuzz-%)

# without a device, test-gpu cannot run: only make check-long builds it, to see that it compiles
test_gpu := $(and $(filter 1,$(CUDA)),$(or $(wildcard /dev/nvidiactl),$(TEST_GPU)),$(B)/bin/test-gpu)
tests: all $(PRELOAD) $(UNIT:%=$(B)/bin/unit-%) $(TTOOLS:%=$(B)/bin/test-%) $(B)/bin/test-gpu-fake $(B)/lib/libkvcachefs_fake.so $(test_gpu)

format:
	@scripts/format $(ALL_C)
lint: build/.setup-tests
	@scripts/lint
# used by scripts/lint
lint-layout:
	@scripts/columns
	@scripts/format --check $(ALL_C)
lint-tidy: $(TIDY)

# a job for each CPU, unless -j is given
side = $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc))
build_tests = @$(MAKE) $(side) --no-print-directory tests
check:
	$(build_tests) $(if $(filter release,$(MODE)),check-fuzzers FUZZ_O=-O0)
	@tests/run $(B)
# lint, unit tests and the first way of each quick case
check-quick:
	$(build_tests)
	@LEVEL=quick tests/run $(B)
# every way of each case, then the campaigns, most of them shorter than by their own targets
check-long:
	$(build_tests) check-fuzzers TEST_GPU=1
	@failed=; LEVEL=long tests/run $(B) || failed=tests; \
	for t in crash-campaign kill-campaign late-replies faults campaign replay-campaign scale; do \
		$(MAKE) --no-print-directory $$t KILLS=50 SECONDS_LATE=300 MINUTES=3 MOST=25 \
			N=$(or $(N),10000000) || failed="$$failed $$t"; done; \
	[ ! "$$failed" ] || { echo "check-long: failed: $$failed"; exit 1; }
# without clang's libFuzzer each fuzzer is listed as skipped
check-fuzzers: build/.setup-tests
	@! tests/fuzz/run --can >/dev/null || $(MAKE) $(side) --no-print-directory MODE=fuzz fuzzers
fuzz: check-fuzzers
	@tests/fuzz/run --long $(or $(F),$(FUZZ))
fuzz-cover: build/.setup-tests
	@! tests/fuzz/run --can >/dev/null || $(MAKE) $(side) --no-print-directory MODE=fuzzcov fuzzers
	@tests/fuzz/run --cover $(or $(F),$(FUZZ))
check-unit: tests
	@tests/run $(B) unit
wheel: $(B)/lib/libkvcachefs.so.0
	@URL="$(URL)" scripts/wheel $(VERSION) $< build/python
demo: all
	@scripts/demo $(B)
# an alternative that make bench measures, if scripts/setup has left its source
build/deps/bin/passthrough_hp: | build/.setup
	@mkdir -p $(@D)
	$(Q)[ ! -e build/deps/passthrough_hp.ii ] || \
		g++ -O2 -std=c++17 -o $@ build/deps/passthrough_hp.ii $$($(PKG) --static --libs fuse3)
bench: tests build/deps/bin/passthrough_hp
	@scripts/bench $(B)
bench-quick: tests build/deps/bin/passthrough_hp
	@QUICK=1 scripts/bench $(B)
bench-full: tests
	@scripts/bench-full $(B)
bench-modes: tests
	@scripts/bench-modes $(B)
bench-nodes: tests
	@scripts/bench-nodes $(B)
cores: all $(B)/bin/test-cores
	@scripts/cores $(B)
mlperf: all
	@scripts/mlperf $(B)
engines: all
	@tests/engines/run $(B) $(E)
ttft: all
	@scripts/ttft $(B)
conformance: all
	@tests/conformance/run $(B) $(S)
gpu-measure: all $(if $(filter 1,$(CUDA)),$(B)/bin/test-gpu)
	@scripts/gpu-measure $(B) $(DIR)
quality: $(B)/bin/test-quality
	@$(or $(PYTHON),python3) scripts/quality $(B)
host-measure: all
	@scripts/host-measure $(B) $(DIR)
scale: tests
	@scripts/scale $(B) $(N)
late-replies: tests
	@SECONDS_LATE=$(or $(SECONDS_LATE),3600) tests/run $(B) files/late-replies
crash-campaign: tests
	@KILLS=$(or $(KILLS),100) tests/run $(B) crash/kill-under-load
# Kills the daemon while readers open 100,000 chunks at full rate; some 6 s per kill.
kill-campaign: tests
	@KILLS=$(or $(KILLS),500) CHUNKS=100000 tests/run $(B) crash/kill-beside-reads
# Each file call of each tool and of the daemon fails once, or from that call on: errors, kills,
# torn writes. MOST limits the number of failures at each place in the daemon's run.
faults: tests
	@SWEEP=1 tests/run $(B) faults/fsck-reads faults/tools crash/kill-tools store/mkfs faults/daemon
# Mixed operations against a shadow for MINUTES (10) in each KIND of mount.
KIND = plain coded back quotas failing
campaign: tests
	@for k in $(KIND); do KIND=$$k MINUTES=$(or $(MINUTES),10) tests/run $(B) "files/campaign fast" \
		|| exit 1; done
mutants: build/.setup-tests
	@scripts/mutants $(M)
# Power losses for MINUTES (10), each round with another seed; SEED repeats one round.
replay-campaign: tests
	@MINUTES=$(or $(MINUTES),10) tests/run $(B) crash/power-loss

# The installed files: mode, file, folder; and the links. LIBDIR=, ZSHDIR= and PYTHONDIR= are for
# packages. Without PYTHONDIR= the Python package is not installed; use the wheel.
SBINDIR = $(PREFIX)/sbin
LIBDIR = $(PREFIX)/lib
BASHDIR = $(PREFIX)/share/bash-completion/completions
ZSHDIR = $(PREFIX)/share/zsh/site-functions
put = $(foreach f,$(2),$(1)|$(f)|$(3))
PYTHON_PARTS = $(call put,644,$(sort $(wildcard gpu/python/kvcachefs/*.py)) gpu/python/kvcachefs/py.typed,$(PYTHONDIR)/kvcachefs) \
	$(call put,644,$(sort $(wildcard gpu/python/kvcachefs/examples/*.py)),$(PYTHONDIR)/kvcachefs/examples) \
	$(call put,644,tiers/programs/kvctier.py,$(PYTHONDIR)) \
	$(call put,644,$(B)/lib/METADATA,$(PYTHONDIR)/kvcachefs-$(VERSION).dist-info)
INSTALLED = $(call put,755,$(BINS),$(SBINDIR)) \
	$(call put,644,$(B)/lib/libkvcachefs.a $(B)/lib/libkvcachefs.so.0,$(LIBDIR)) \
	$(call put,644,$(B)/lib/kvcachefs.pc,$(LIBDIR)/pkgconfig) \
	$(call put,644,$(sort $(wildcard gpu/kvcachefs*.h)) tiers/programs/kvctier.h,$(PREFIX)/include) \
	$(call put,644,tiers/programs/folder.c,$(PREFIX)/share/doc/kvcachefs/programs) \
	$(call put,755,tiers/programs/folder.py,$(PREFIX)/share/doc/kvcachefs/programs) \
	$(call put,755,tiers/programs/lmcache_l2.py tiers/programs/mooncake_store.py,$(PREFIX)/lib/kvcachefs) \
	$(call put,644,tiers/programs/kvctier.py,$(PREFIX)/lib/kvcachefs) \
	$(call put,644,scripts/completion/kvcachectl.bash,$(BASHDIR)) \
	$(call put,644,scripts/completion/_kvcachectl,$(ZSHDIR)) \
	$(foreach m,$(MAN),$(call put,644,$(m),$(PREFIX)/share/man/man$(patsubst .%,%,$(suffix $(m))))) \
	$(call put,644,$(B)/lib/kvcachefs@.service,$(PREFIX)/lib/systemd/system) \
	$(foreach d,tmpfiles.d modules-load.d,$(call put,644,scripts/systemd/$d/kvcachefs.conf,$(PREFIX)/lib/$d)) \
	$(foreach e,NAME.conf memory.conf fstab mnt-kv.mount uring.conf,$(call put,644,scripts/systemd/$e,$(PREFIX)/share/doc/kvcachefs/systemd)) \
	$(call put,644,README.md SECURITY.md,$(PREFIX)/share/doc/kvcachefs) \
	$(foreach d,$(shell cd scripts && find monitoring kubernetes -type d),$(call put,644,$(shell find scripts/$d -maxdepth 1 -type f),$(PREFIX)/share/doc/kvcachefs/$d)) \
	$(if $(PYTHONDIR),$(PYTHON_PARTS))
# mount -o remount looks for the helper of the type in /proc/mounts, fuse.kvcachefs
LINKED = libkvcachefs.so.0|$(LIBDIR)/libkvcachefs.so \
	$(if $(filter /sbin /usr/sbin,$(SBINDIR)),mount.kvcachefs|$(SBINDIR)/mount.fuse.kvcachefs,$(foreach h,mount fsck,$(SBINDIR)/$(h).kvcachefs|/sbin/$(h).kvcachefs) \
	$(SBINDIR)/mount.kvcachefs|/sbin/mount.fuse.kvcachefs)
# the installed name of each file
called = sed 's/kvcachectl\.bash$$/kvcachectl/'
install: all
	@$(MAKE) --no-print-directory install-built
# requires a finished build
install-built: $(B)/lib/kvcachefs.pc $(B)/lib/kvcachefs@.service $(B)/lib/METADATA
	@set -e; for i in $(foreach i,$(INSTALLED),'$(i)'); do \
		mode=$${i%%|*} to=$(DESTDIR)$${i##*|} from=$${i#*|}; from=$${from%|*}; \
		install -D -m $$mode $$from $$to/$$(basename $$from | $(called)); done
	@set -e; for i in $(foreach i,$(LINKED),'$(i)'); do \
		install -d $$(dirname $(DESTDIR)$${i#*|}); ln -sf $${i%|*} $(DESTDIR)$${i#*|}; done
	@$(if $(DESTDIR),,ldconfig 2>/dev/null || :)
uninstall:
	@set -e; for i in $(foreach i,$(INSTALLED),'$(i)'); do \
		from=$${i#*|}; from=$${from%|*}; rm -f $(DESTDIR)$${i##*|}/$$(basename $$from | $(called)); done
	@for i in $(foreach i,$(LINKED),'$(i)'); do rm -f $(DESTDIR)$${i#*|}; done
	@$(if $(DESTDIR),,ldconfig 2>/dev/null || :)

deb:
	@scripts/deb
dist:
	@scripts/dist
dist-check:
	@scripts/dist-check
docs:
	@scripts/docs build/docs
deb-check:
	@scripts/deb-check $(RELEASES)

clean:
	rm -rf build/release build/debug build/asan build/tsan build/fuzz build/fuzzcov build/python
distclean:
	rm -rf build

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
.PHONY: all help setup tests wheel format lint lint-layout lint-tidy check check-quick check-long check-unit demo bench bench-quick bench-full bench-modes bench-nodes cores mlperf engines ttft conformance gpu-measure host-measure quality scale late-replies crash-campaign kill-campaign faults campaign mutants replay-campaign fuzzers check-fuzzers fuzz fuzz-cover install install-built uninstall deb deb-check dist dist-check docs clean distclean FORCE
.SECONDARY:
