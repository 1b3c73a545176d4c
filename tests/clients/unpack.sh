#!/usr/bin/env bash
# Fetches Debian packages and unpacks them into a folder. Nothing is installed, nobody has to be root, and the package
# lists are its own, so that no `apt-get update` has to come before.
#
#     unpack.sh [--suite NAME] FOLDER PACKAGE…
#
# With --suite the packages come from that release of Debian, from the mirror that this machine uses for its own.
set -euo pipefail

suite=
if [[ $1 == --suite ]]; then
    suite=$2
    shift 2
fi
folder=$1
shift
for program in apt-get dpkg; do
    command -v "$program" >/dev/null ||
        { echo "$program is not there: on Debian and Ubuntu it fetches $*; elsewhere it has to come by hand" >&2; exit 1; }
done

rm -rf "$folder" "$folder.part"
mkdir -p "$folder.part"
part=$(realpath "$folder.part")
trap 'rm -rf "$part"' EXIT
mkdir -p "$part"/{lists/partial,cache/archives/partial,sources,debs,files}
apt=(apt-get -qq -o "Dir::State::Lists=$part/lists" -o "Dir::Cache=$part/cache" -o "APT::Sandbox::User=$(id -un)")
"${apt[@]}" update
if [[ -n $suite ]]; then
    mirror=$("${apt[@]}" indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
        grep --max-count=1 '/debian/$') ||
        { echo "no mirror of Debian among this machine's package sources" >&2; exit 1; }
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$suite" \
        >"$part/sources.list"
    apt+=(-o "Dir::Etc::SourceList=$part/sources.list" -o "Dir::Etc::SourceParts=$part/sources")
    "${apt[@]}" update
fi
(cd "$part/debs" && "${apt[@]}" download "$@")
for package in "$part"/debs/*.deb; do
    dpkg --extract "$package" "$part/files"
done
mv "$part/files" "$folder"
