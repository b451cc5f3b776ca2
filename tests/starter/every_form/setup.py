from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="forms",
    license="MIT",
    ext_modules=[CppExtension("forms", ["forms.cpp", "elsewhere.cpp"], extra_compile_args={"cxx": ["-O0"]})],
    cmdclass={"build_ext": BuildExtension},
)
