"""The actions: what `uses: kci/build@v1` and those beside it do on a runner."""
